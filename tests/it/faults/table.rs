//! Table of the results.

use std::fmt;

use super::calls::Fault;
use super::run::Tried;

#[derive(Default)]
struct Row {
    name: String,
    n_points: usize,
    /// Points tried, points reached, flaws; by fault.
    counts: [[usize; 3]; Fault::ALL.len()],
}

#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
    flaws: Vec<String>,
}

impl Table {
    pub fn add(&mut self, name: &str, n_points: usize, tried: Vec<(Fault, Tried)>) {
        let mut row = Row { name: name.to_owned(), n_points, ..Row::default() };
        for (fault, tried) in tried {
            let counts = &mut row.counts[fault as usize];
            counts[0] += 1;
            counts[1] += usize::from(tried.is_reached);
            counts[2] += usize::from(tried.flaw.is_some());
            self.flaws.extend(tried.flaw);
        }
        self.rows.push(row);
    }

    pub fn n_reached(&self, fault: Fault) -> usize {
        self.rows.iter().map(|row| row.counts[fault as usize][1]).sum()
    }

    pub fn flaws(&self) -> &[String] {
        &self.flaws
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = self.counts.map(|[_, reached, flaws]| format!("{reached} | {flaws}"));
        write!(f, "| {} | {} | {} |", self.name, self.n_points, cells.join(" | "))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults = Fault::ALL.map(|fault| format!("{} | flaws", fault.name()));
        writeln!(f, "| command | points | {} |", faults.join(" | "))?;
        writeln!(f, "| --- | ---: {}|", "| ---: | ---: ".repeat(faults.len()))?;
        let mut all = Row { name: "all".to_owned(), ..Row::default() };
        for row in &self.rows {
            writeln!(f, "{row}")?;
            all.n_points += row.n_points;
            for (sum, counts) in all.counts.iter_mut().zip(row.counts) {
                (0..3).for_each(|at| sum[at] += counts[at]);
            }
        }
        writeln!(f, "{all}")?;
        let [n_tried, n_reached, _] =
            [0, 1, 2].map(|at| all.counts.iter().map(|counts| counts[at]).sum::<usize>());
        writeln!(f, "{n_tried} of {} points tried, {n_reached} of them reached", all.n_points)
    }
}
