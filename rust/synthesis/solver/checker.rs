//! The checker of certificates, in code that shares nothing with the solver.

use std::collections::BTreeMap;

use super::certificate::{Certificate, CertificateError, Step};
use super::problem::Problem;

/// Checks that no assignment of `problem` costs less than `bound - tolerance * |bound|`, with the certificate's bound.
/// Nothing else in the problem or the certificate widens that: sums of costs are rounded down, so that each table stays
/// a lower bound of the exact one. A `tolerance` of 1e-9 suits double precision.
///
/// Takes time and memory as the eliminations do that the certificate names.
///
/// # Errors
/// Says which step does not hold.
pub fn check(problem: &Problem, certificate: &Certificate, tolerance: f64) -> Result<(), CertificateError> {
    let assignment = &certificate.assignment;
    if assignment.len() != problem.domains.len() || assignment.iter().zip(&problem.domains).any(|(x, size)| x >= size) {
        return Err(CertificateError::Assignment);
    }
    let cost = problem.cost(assignment);
    if cost == f64::INFINITY {
        return Err(CertificateError::Assignment);
    }
    // What is no number agrees with nothing and reaches nothing.
    let agrees = (certificate.cost - cost).abs() <= tolerance * cost.abs();
    if !agrees {
        let claimed = certificate.cost;
        return Err(CertificateError::Cost { cost, claimed });
    }
    let claimed = certificate.bound;
    let reaches = |cost: f64| cost >= claimed - tolerance * claimed.abs();
    if !reaches(cost) {
        return Err(CertificateError::Bound { proven: cost, claimed });
    }
    let mut checker = Checker::new(problem);
    for (index, step) in certificate.steps.iter().enumerate() {
        let dropped = checker
            .take(step)
            .map_err(|reason| CertificateError::Step { step: index, reason })?;
        if let Some((variable, label, cost)) = dropped.into_iter().find(|&(_, _, cost)| !reaches(cost)) {
            return Err(CertificateError::Drop {
                step: index,
                variable,
                label,
                cost,
                bound: claimed,
            });
        }
    }
    let proven = checker.bound();
    if reaches(proven) {
        Ok(())
    } else {
        Err(CertificateError::Bound { proven, claimed })
    }
}

/// The sum, rounded down where it is not exact. What is forbidden stays so; the sum of numbers is never NaN.
fn below(one: f64, other: f64) -> f64 {
    if one == f64::INFINITY || other == f64::INFINITY {
        return f64::INFINITY;
    }
    // Two-sum: the exact sum is the total and this error, which is NaN where the total has overflown.
    let total = one + other;
    let part = total - one;
    let error = (one - (total - part)) + (other - part);
    if error >= 0.0 { total } else { total.next_down() }
}

/// A table of the checker with its minimum.
struct Costs {
    costs: Vec<f64>,
    least: f64,
}

impl From<Vec<f64>> for Costs {
    fn from(costs: Vec<f64>) -> Costs {
        let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
        Costs { costs, least }
    }
}

/// The problem as the steps so far have made it.
struct Checker {
    /// The labels left of each variable.
    labels: Vec<Vec<usize>>,
    /// Tables by scope, row-major over the labels left.
    tables: BTreeMap<Vec<usize>, Costs>,
    /// Whether a variable was taken out.
    gone: Vec<bool>,
}

type Dropped = Vec<(usize, usize, f64)>;

impl Checker {
    fn new(problem: &Problem) -> Checker {
        let labels: Vec<Vec<usize>> = problem.domains.iter().map(|&size| (0..size).collect()).collect();
        let gone = vec![false; labels.len()];
        let mut checker = Checker {
            labels,
            tables: BTreeMap::new(),
            gone,
        };
        for variable in 0..problem.domains.len() {
            checker.add(vec![variable], vec![0.0; problem.domains[variable]]);
        }
        for factor in &problem.factors {
            let mut scope = factor.scope.clone();
            scope.sort_unstable();
            let costs = checker.entries(&scope, |labels| {
                let at = |v: &usize| labels[scope.binary_search(v).unwrap_or_default()];
                factor.costs[factor
                    .scope
                    .iter()
                    .fold(0, |index, v| index * problem.domains[*v] + at(v))]
            });
            checker.add(scope, costs);
        }
        checker
    }

    /// A lower bound of every assignment.
    fn bound(&self) -> f64 {
        self.tables.values().fold(0.0, |sum, table| below(sum, table.least))
    }

    fn size(&self, variable: usize) -> usize {
        self.labels[variable].len()
    }

    /// The values of a function of label positions, in row-major order.
    fn entries(&self, scope: &[usize], value: impl Fn(&[usize]) -> f64) -> Vec<f64> {
        let total = scope.iter().map(|&variable| self.size(variable)).product();
        let mut positions = vec![0; scope.len()];
        let mut entries = Vec::with_capacity(total);
        while entries.len() < total {
            entries.push(value(&positions));
            for (position, &variable) in positions.iter_mut().zip(scope).rev() {
                *position += 1;
                if *position < self.size(variable) {
                    break;
                }
                *position = 0;
            }
        }
        entries
    }

    /// Index into the table over `scope` at positions of the labels of `of`, which holds all its variables.
    fn index(&self, scope: &[usize], of: &[usize], positions: &[usize]) -> usize {
        let at = |variable: &usize| positions[of.binary_search(variable).unwrap_or_default()];
        scope
            .iter()
            .fold(0, |index, variable| index * self.size(*variable) + at(variable))
    }

    /// Position of a variable's label in an entry of the table over `scope`.
    fn position(&self, scope: &[usize], variable: usize, entry: usize) -> usize {
        let inner: usize = scope
            .iter()
            .filter(|&&other| other > variable)
            .map(|&other| self.size(other))
            .product();
        entry / inner % self.size(variable)
    }

    fn add(&mut self, scope: Vec<usize>, costs: Vec<f64>) {
        let sum = match self.tables.remove(&scope) {
            Some(table) => table.costs.iter().zip(&costs).map(|(&a, &b)| below(a, b)).collect(),
            None => costs,
        };
        self.tables.insert(scope, sum.into());
    }

    fn remove(&mut self, scope: &[usize]) -> Result<Vec<f64>, String> {
        Ok(self
            .tables
            .remove(scope)
            .ok_or_else(|| format!("no table over {scope:?}"))?
            .costs)
    }

    /// Takes out the tables that hold a variable.
    fn remove_all(&mut self, variable: usize) -> Vec<(Vec<usize>, Vec<f64>)> {
        let holds = |scope: &&Vec<usize>| scope.binary_search(&variable).is_ok();
        let scopes: Vec<Vec<usize>> = self.tables.keys().filter(holds).cloned().collect();
        let tables = scopes.into_iter().filter_map(|scope| self.tables.remove_entry(&scope));
        tables.map(|(scope, table)| (scope, table.costs)).collect()
    }

    /// Takes a step. Returns the labels dropped, each with a lower bound of all assignments that have it.
    fn take(&mut self, step: &Step) -> Result<Dropped, String> {
        if let Step::Drop { variable, .. } | Step::Fix { variable } | Step::Eliminate { variable } = step
            && self.gone.get(*variable) != Some(&false)
        {
            return Err(format!("variable {variable} is not there"));
        }
        match step {
            Step::Shift { scope, costs } => self.shift(scope, costs)?,
            Step::Join { scope, into } => self.join(scope, into)?,
            Step::Drop { variable, labels } => return Ok(self.drop(*variable, labels)),
            Step::Fix { variable } => {
                if self.size(*variable) != 1 {
                    return Err(format!("variable {variable} has {} labels", self.size(*variable)));
                }
                self.fix(*variable);
            }
            Step::Eliminate { variable } => self.eliminate(*variable),
        }
        Ok(Vec::new())
    }

    fn shift(&mut self, scope: &[usize], moved: &[f64]) -> Result<(), String> {
        let mut costs = self.remove(scope)?;
        let expected: usize = scope.iter().map(|&variable| self.size(variable)).sum();
        if scope.len() < 2 || moved.len() != expected || moved.iter().any(|cost| !cost.is_finite()) {
            return Err(format!(
                "{expected} finite costs can move from the table over {scope:?}"
            ));
        }
        let mut rest = moved;
        for &variable in scope {
            let (moved, others) = rest.split_at(self.size(variable));
            for (entry, cost) in costs.iter_mut().enumerate() {
                *cost = below(*cost, -moved[self.position(scope, variable, entry)]);
            }
            self.add(vec![variable], moved.to_vec());
            rest = others;
        }
        self.add(scope.to_vec(), costs);
        Ok(())
    }

    fn join(&mut self, scope: &[usize], into: &[usize]) -> Result<(), String> {
        if scope == into || scope.iter().any(|variable| into.binary_search(variable).is_err()) {
            return Err(format!("the table over {into:?} cannot take up the one over {scope:?}"));
        }
        if !self.tables.contains_key(into) {
            return Err(format!("no table over {into:?}"));
        }
        let costs = self.remove(scope)?;
        let spread = self.entries(into, |positions| costs[self.index(scope, into, positions)]);
        self.add(into.to_vec(), spread);
        Ok(())
    }

    fn drop(&mut self, variable: usize, labels: &[usize]) -> Dropped {
        let tables = self.remove_all(variable);
        let rest = self.bound();
        let mut least = vec![rest; self.size(variable)];
        for (scope, costs) in &tables {
            let mut minima = vec![f64::INFINITY; least.len()];
            for (entry, &cost) in costs.iter().enumerate() {
                let minimum = &mut minima[self.position(scope, variable, entry)];
                *minimum = minimum.min(cost);
            }
            for (least, minimum) in least.iter_mut().zip(minima) {
                *least = below(*least, minimum);
            }
        }
        let dropped = |position: &usize| labels.contains(&self.labels[variable][*position]);
        let (out, kept): (Vec<usize>, Vec<usize>) = (0..least.len()).partition(dropped);
        let result = out
            .iter()
            .map(|&position| (variable, self.labels[variable][position], least[position]))
            .collect();
        let select = |(scope, costs): (Vec<usize>, Vec<f64>)| {
            let stays = |entry: &usize| kept.contains(&self.position(&scope, variable, *entry));
            let costs: Vec<f64> = (0..costs.len()).filter(stays).map(|entry| costs[entry]).collect();
            (scope, costs.into())
        };
        let selected: Vec<(Vec<usize>, Costs)> = tables.into_iter().map(select).collect();
        self.labels[variable] = kept
            .into_iter()
            .map(|position| self.labels[variable][position])
            .collect();
        self.tables.extend(selected);
        result
    }

    /// Takes out a variable with one label: its tables lose it.
    fn fix(&mut self, variable: usize) {
        self.gone[variable] = true;
        for (mut scope, costs) in self.remove_all(variable) {
            scope.retain(|&other| other != variable);
            self.add(scope, costs);
        }
    }

    fn eliminate(&mut self, variable: usize) {
        self.gone[variable] = true;
        let tables = self.remove_all(variable);
        let mut scope: Vec<usize> = tables.iter().flat_map(|(scope, _)| scope.iter().copied()).collect();
        scope.sort_unstable();
        scope.dedup();
        let own = scope.binary_search(&variable).unwrap_or_default();
        let others: Vec<usize> = scope.iter().copied().filter(|&other| other != variable).collect();
        let least = self.entries(&others, |positions| {
            let mut all = positions.to_vec();
            all.insert(own, 0);
            let sum = |position: usize| -> f64 {
                let mut all = all.clone();
                all[own] = position;
                tables
                    .iter()
                    .map(|(table, costs)| costs[self.index(table, &scope, &all)])
                    .fold(0.0, below)
            };
            (0..self.size(variable)).map(sum).fold(f64::INFINITY, f64::min)
        });
        self.add(others, least);
    }
}
