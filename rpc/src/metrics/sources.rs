//! Metrics of what lives on a node beside it, like a set of replicas: their text joins the node's, so that one scrape has all.

use std::any::Any;
use std::fmt;
use std::rc::{Rc, Weak};

/// Texts of things that may go; each is kept for as long as its thing lives.
#[derive(Default)]
pub(crate) struct Sources(Vec<Source>);

struct Source {
    of: Weak<dyn Any>,
    text: Box<dyn Fn() -> Option<String>>,
}

impl Sources {
    /// Adds a source, and forgets those that are gone.
    pub(crate) fn add<T: 'static>(&mut self, of: &Rc<T>, text: impl Fn(&T) -> String + 'static) {
        self.0.retain(|source| source.of.strong_count() > 0);
        let weak = Rc::downgrade(of);
        self.0.push(Source { of: weak.clone(), text: Box::new(move || weak.upgrade().map(|of| text(&of))) });
    }

    /// All texts as one.
    pub(super) fn text(&self) -> String {
        merge(self.0.iter().filter_map(|source| (source.text)()))
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sources({})", self.0.len())
    }
}

/// One text out of several. Sources of one kind have the same families, and the format wants each family in one piece, under one
/// head: <https://prometheus.io/docs/instrumenting/exposition_formats/>.
fn merge(texts: impl Iterator<Item = String>) -> String {
    let mut families: Vec<(String, String)> = Vec::new();
    for text in texts {
        let (mut family, mut known) = (None, false);
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let name = help.split(' ').next().unwrap_or_default();
                let place = families.iter().position(|(have, _)| have == name);
                known = place.is_some();
                family = Some(place.unwrap_or_else(|| {
                    families.push((name.to_owned(), String::new()));
                    families.len() - 1
                }));
            }
            // What comes before any head belongs nowhere.
            let Some(family) = family else { continue };
            if !(known && line.starts_with('#')) {
                let (_, lines) = &mut families[family];
                lines.push_str(line);
                lines.push('\n');
            }
        }
    }
    families.into_iter().map(|(_, lines)| lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_what_is_gone_is_gone() {
        let mut sources = Sources::default();
        let (one, other) = (Rc::new(1), Rc::new(2));
        for number in [&one, &other] {
            sources.add(number, |number| format!("# HELP n A number.\n# TYPE n gauge\nn{{of=\"{number}\"}} {number}\n"));
        }
        assert_eq!(sources.text(), "# HELP n A number.\n# TYPE n gauge\nn{of=\"1\"} 1\nn{of=\"2\"} 2\n");
        drop(one);
        assert_eq!(sources.text(), "# HELP n A number.\n# TYPE n gauge\nn{of=\"2\"} 2\n");
        sources.add(&other, |_| String::new());
        assert_eq!(sources.0.len(), 2, "what is gone is forgotten");
    }

    #[test]
    fn families_of_several_sources_are_in_one_piece_each() {
        let text = |of: u8| format!("# HELP a A.\n# TYPE a counter\na{{of=\"{of}\"}} 1\n# HELP b B.\nb{{of=\"{of}\"}} 2\n");
        let merged = merge([text(1), text(2)].into_iter());
        let lines: Vec<&str> = merged.lines().collect();
        let want =
            ["# HELP a A.", "# TYPE a counter", "a{of=\"1\"} 1", "a{of=\"2\"} 1", "# HELP b B.", "b{of=\"1\"} 2", "b{of=\"2\"} 2"];
        assert_eq!(lines, want);
    }
}
