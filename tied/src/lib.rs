//! Tautline.
