//! A table of results: Salvor beside another controller, turn by turn of one run.

/// The target for Salvor's number.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// At least this many times the other's.
    AtLeast(f64),
    /// At most this many times the other's.
    AtMost(f64),
    /// Below this, whatever the other's is.
    Below(f64),
    None,
}

pub(crate) struct Line<Turn> {
    what: &'static str,
    unit: &'static str,
    decimals: usize,
    target: Target,
    of: fn(&Turn) -> f64,
}

pub(crate) const fn line<Turn>(
    what: &'static str,
    unit: &'static str,
    decimals: usize,
    target: Target,
    of: fn(&Turn) -> f64,
) -> Line<Turn> {
    Line { what, unit, decimals, target, of }
}

impl<Turn> Line<Turn> {
    fn print(&self, salvor: &[Turn], other: &[Turn]) -> String {
        let (decimals, unit) = (self.decimals, self.unit);
        let (ours, theirs) = (median(salvor, self.of), median(other, self.of));
        let cell = |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.decimals$}{unit}"));
        // Each turn is compared with the one of the same round: the machine may have been slower in another round.
        let mut ratios: Vec<f64> =
            salvor.iter().zip(other).map(|(a, b)| (self.of)(a) / (self.of)(b)).collect();
        ratios.sort_by(f64::total_cmp);
        // Zero divided by zero has no ratio.
        let ratio = ratios.get(ratios.len() / 2).copied().filter(|ratio| ratio.is_finite());
        let target = match self.target {
            Target::AtLeast(least) => format!("≥ {least:.2}×"),
            Target::AtMost(most) => format!("≤ {most:.2}×"),
            Target::Below(most) => format!("< {most:.0}{unit}"),
            Target::None => "–".to_owned(),
        };
        let met = match self.target {
            Target::AtLeast(least) => ratio.map(|ratio| ratio >= least),
            Target::AtMost(most) => ratio.map(|ratio| ratio <= most),
            Target::Below(most) => ours.map(|ours| ours < most),
            Target::None => None,
        };
        let met = met.map_or("–", |met| if met { "yes" } else { "**no**" });
        let ratio = ratio.map_or("–".to_owned(), |r| format!("{r:.2}×"));
        format!("| {} | {} | {} | {ratio} | {target} | {met} |\n", self.what, cell(ours), cell(theirs))
    }
}

fn median<Turn>(turns: &[Turn], of: fn(&Turn) -> f64) -> Option<f64> {
    let mut values: Vec<f64> = turns.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The table, in Markdown. It has ratios only if both have turns.
pub(crate) fn table<Turn>(lines: &[Line<Turn>], name: &str, salvor: &[Turn], other: &[Turn]) -> String {
    let mut table =
        format!("| figure | Salvor | {name} | ratio | target | met |\n|---|--:|--:|--:|--:|---|\n");
    for line in lines {
        table.push_str(&line.print(salvor, other));
    }
    table
}

/// The cells of a table's line, for tests.
#[cfg(test)]
pub(crate) fn cells(page: &str, what: &str) -> Vec<String> {
    let line = page.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("no {what} in {page}"));
    line.split('|').map(|cell| cell.trim().to_owned()).collect()
}
