//! Fuzz targets of `tautline-tied`, built as those of `tautline-net` are: see [`tautline_net_fuzz`].
#![forbid(unsafe_code)]

pub mod table;
pub mod tie;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_that_were_read_before_are_no_trouble() {
        tautline_net_fuzz::replay::kept(env!("CARGO_MANIFEST_DIR"), "tie", tie::run);
    }

    #[test]
    fn what_servers_told_each_other_before_breaks_no_promise() {
        tautline_net_fuzz::replay::kept(env!("CARGO_MANIFEST_DIR"), "table", table::run);
    }
}
