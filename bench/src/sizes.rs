//! Mixes of message sizes from real datacenters, as Homa's evaluation uses them.

use crate::error::BenchError;

/// A distribution of message sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// Its name in the Homa paper.
    pub name: &'static str,
    /// Sizes in bytes, with the share of messages that are not larger.
    points: Vec<(usize, f64)>,
}

impl Mix {
    /// The mixes W2, W3 and W4, from searches of some hundred bytes to Hadoop's megabytes.
    pub fn all() -> Result<[Mix; 3], BenchError> {
        Ok([
            Mix::parse("W2", include_str!("../workloads/w2.csv"))?,
            Mix::parse("W3", include_str!("../workloads/w3.csv"))?,
            Mix::parse("W4", include_str!("../workloads/w4.csv"))?,
        ])
    }

    fn parse(name: &'static str, table: &str) -> Result<Mix, BenchError> {
        let bad =
            |line: &str| BenchError::Product { action: "reading a mix of sizes", why: format!("{name} has the line `{line}`") };
        let mut points = Vec::new();
        for line in table.lines().skip(1).filter(|line| !line.trim().is_empty()) {
            let (size, share) = line.split_once(',').ok_or_else(|| bad(line))?;
            let point: (usize, f64) = (size.trim().parse().map_err(|_| bad(line))?, share.trim().parse().map_err(|_| bad(line))?);
            let grows = points.last().is_none_or(|last: &(usize, f64)| last.0 < point.0 && last.1 <= point.1);
            if !grows || !(0.0..=1.0).contains(&point.1) {
                return Err(bad(line));
            }
            points.push(point);
        }
        if points.is_empty() {
            return Err(bad("none"));
        }
        Ok(Mix { name, points })
    }

    /// A size, drawn.
    pub fn draw(&self, random: &mut fastrand::Rng) -> usize {
        let share = random.f64();
        let at = self.points.partition_point(|point| point.1 < share);
        self.points[at.min(self.points.len() - 1)].0
    }

    /// The mean of `measure` over the sizes.
    pub fn mean(&self, measure: impl Fn(usize) -> f64) -> f64 {
        let mut before = 0.0;
        let mut sum = 0.0;
        for (size, share) in &self.points {
            sum += measure(*size) * (share - before);
            before = *share;
        }
        // What the table leaves out counts as the largest.
        sum + (1.0 - before) * measure(self.points[self.points.len() - 1].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mixes_are_read_and_drawn_as_they_say() {
        let mixes = Mix::all().unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        for mix in &mixes {
            let drawn: Vec<usize> = (0..200_000).map(|_| mix.draw(&mut random)).collect();
            let mean = drawn.iter().sum::<usize>() as f64 / drawn.len() as f64;
            let ratio = mean / mix.mean(|size| size as f64);
            assert!((0.9..1.1).contains(&ratio), "{}: mean {mean}, ratio {ratio}", mix.name);
            let (size, share) = mix.points[mix.points.len() / 2];
            let smaller = drawn.iter().filter(|drawn| **drawn <= size).count() as f64 / drawn.len() as f64;
            assert!((smaller - share).abs() < 0.01, "{}: {smaller} instead of {share}", mix.name);
        }
        let means = mixes.map(|mix| mix.mean(|size| size as f64));
        assert!(means.is_sorted(), "{means:?}");
    }

    #[test]
    fn a_table_that_is_no_distribution_is_refused() {
        for table in ["bytes,share\n", "bytes,share\n8,0.5\n8,0.6\n", "bytes,share\n8,0.5\n9,0.4\n", "bytes,share\n8,2\n", "x\ny\n"]
        {
            assert!(Mix::parse("test", table).is_err(), "{table}");
        }
    }
}
