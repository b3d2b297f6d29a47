//! Fuzz targets of `tautline-rpc`, built as those of `tautline-net` are: see [`tautline_net_fuzz`].
#![forbid(unsafe_code)]

pub mod call;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_was_told_before_is_no_trouble() {
        tautline_net_fuzz::replay::kept(env!("CARGO_MANIFEST_DIR"), "call", call::run);
    }
}
