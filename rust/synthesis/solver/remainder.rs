//! What is left of a problem while it is being solved: an equivalent problem over fewer variables and labels.
//!
//! Every change is written down as a step of the proof (see [`super::certificate`]), and every eliminated variable keeps
//! its bucket, so that an assignment of what is left extends to one of the whole problem.

use std::mem;
use std::rc::Rc;

use super::certificate::Step;
use super::eliminate::Bucket;
use super::marginals::Lane;
use super::minimise::minimise_over;
use super::problem::Problem;
use super::rows::minimum;
use super::table::Table;
use super::watch::Watch;

/// An equivalent problem in progress. Variables keep their numbers throughout.
pub(super) struct Remainder {
    /// The labels of each variable that are left, as the whole problem numbers them, ascending.
    pub labels: Vec<Rc<[usize]>>,
    /// Cost of each label by itself.
    pub unary: Vec<Vec<f64>>,
    /// Tables over two variables or more, no two over the same scope. One that was taken out leaves an empty table.
    pub tables: Vec<Table>,
    /// The tables of each variable: indices into `tables`.
    pub incident: Vec<Vec<usize>>,
    /// What every assignment pays.
    pub constant: f64,
    /// Whether a variable is still to be decided: not eliminated, and with several labels.
    pub open: Vec<bool>,
    /// Costs moved from each table to its variables since they were last written into the proof: one value per label,
    /// axis after axis; empty where nothing moved.
    pub moved: Vec<Vec<f64>>,
    /// The buckets of the variables eliminated so far, in order.
    pub buckets: Vec<Bucket>,
    /// How the remainder follows from the problem.
    pub proof: Vec<Step>,
}

impl Remainder {
    /// The whole problem. Factors with the same variables become one table.
    pub fn new(problem: &Problem) -> Remainder {
        let labels: Vec<Rc<[usize]>> = problem.domains.iter().map(|&size| (0..size).collect()).collect();
        let mut remainder = Remainder::empty(labels);
        for factor in &problem.factors {
            remainder.add(Table::from_factor(factor, &problem.domains));
        }
        for variable in 0..remainder.labels.len() {
            remainder.fix_if_single(variable);
        }
        remainder
    }

    fn empty(labels: Vec<Rc<[usize]>>) -> Remainder {
        Remainder {
            unary: labels.iter().map(|labels| vec![0.0; labels.len()]).collect(),
            tables: Vec::new(),
            incident: vec![Vec::new(); labels.len()],
            constant: 0.0,
            open: vec![true; labels.len()],
            moved: Vec::new(),
            buckets: Vec::new(),
            proof: Vec::new(),
            labels,
        }
    }

    fn fix_if_single(&mut self, variable: usize) {
        if self.open[variable] && self.labels[variable].len() == 1 {
            self.open[variable] = false;
            self.constant += self.unary[variable][0];
            self.proof.push(Step::Fix { variable });
        }
    }

    /// The variables that are still to be decided, in program order.
    pub fn variables(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.open.len()).filter(|&variable| self.open[variable])
    }

    /// The tables that are there.
    pub fn live_tables(&self) -> impl Iterator<Item = &Table> + '_ {
        self.tables.iter().filter(|table| !table.scope.is_empty())
    }

    /// No assignment costs less: the sum of all minima.
    pub fn bound(&self) -> f64 {
        let unaries: f64 = self.variables().map(|variable| minimum(&self.unary[variable])).sum();
        let tables: f64 = self.live_tables().map(Table::minimum).sum();
        self.constant + unaries + tables
    }

    /// Adds a table; one over the same variables takes it up.
    pub fn add(&mut self, table: Table) {
        match table.scope[..] {
            [] => self.constant += table.costs[0],
            [variable] => {
                for (cost, addend) in self.unary[variable].iter_mut().zip(&table.costs) {
                    *cost += addend;
                }
            }
            [first, ..] => {
                let same = self.incident[first]
                    .iter()
                    .find(|&&index| self.tables[index].scope == table.scope);
                if let Some(&index) = same {
                    self.tables[index].add(&table);
                } else {
                    for &variable in &table.scope {
                        self.incident[variable].push(self.tables.len());
                    }
                    self.tables.push(table);
                    self.moved.push(Vec::new());
                }
            }
        }
    }

    /// Takes a table out.
    pub fn take(&mut self, index: usize) -> Table {
        self.record_moves_of(index);
        let empty = Table {
            scope: Vec::new(),
            shape: Vec::new(),
            costs: Vec::new(),
        };
        let table = mem::replace(&mut self.tables[index], empty);
        for &variable in &table.scope {
            self.incident[variable].retain(|&other| other != index);
        }
        table
    }

    /// Takes off a table's entries what was moved out of it in its lane.
    pub fn settle(&mut self, index: usize, lane: Lane) {
        if self.tables[index].scope.is_empty() {
            return;
        }
        let costs = lane.settle(&mut self.tables[index]);
        if self.moved[index].is_empty() {
            self.moved[index] = costs;
        } else {
            for (moved, cost) in self.moved[index].iter_mut().zip(costs) {
                *moved += cost;
            }
        }
    }

    /// Writes the costs moved so far into the proof.
    pub fn record_moves(&mut self) {
        for index in 0..self.tables.len() {
            self.record_moves_of(index);
        }
    }

    fn record_moves_of(&mut self, index: usize) {
        let costs = mem::take(&mut self.moved[index]);
        if !costs.is_empty() {
            self.proof.push(Step::Shift {
                scope: self.tables[index].scope.clone(),
                costs,
            });
        }
    }

    /// The same without some labels (variable and positions, in the order of the proof), and how that follows: its
    /// buckets and its proof begin here, after the moves of this one.
    pub fn restricted(&self, drops: &[(usize, Vec<usize>)]) -> Remainder {
        let mut keep: Vec<Option<Vec<usize>>> = vec![None; self.labels.len()];
        for (variable, positions) in drops {
            let all = || (0..self.labels[*variable].len()).collect();
            keep[*variable]
                .get_or_insert_with(all)
                .retain(|position| !positions.contains(position));
        }
        let labels = self.labels.iter().zip(&keep).map(|(labels, keep)| match keep {
            Some(positions) => positions.iter().map(|&position| labels[position]).collect(),
            None => Rc::clone(labels),
        });
        let mut rest = Remainder::empty(labels.collect());
        rest.proof = self.drop_steps(drops);
        rest.constant = self.constant;
        for (variable, keep) in keep.iter().enumerate() {
            rest.open[variable] = self.open[variable];
            rest.unary[variable] = match keep {
                Some(positions) => positions
                    .iter()
                    .map(|&position| self.unary[variable][position])
                    .collect(),
                None => self.unary[variable].clone(),
            };
            rest.fix_if_single(variable);
        }
        for table in self.live_tables() {
            rest.add(table.select(&keep));
        }
        rest
    }

    fn drop_steps(&self, drops: &[(usize, Vec<usize>)]) -> Vec<Step> {
        let step = |(variable, positions): &(usize, Vec<usize>)| {
            let labels = positions
                .iter()
                .map(|&position| self.labels[*variable][position])
                .collect();
            Step::Drop {
                variable: *variable,
                labels,
            }
        };
        drops.iter().map(step).collect()
    }

    /// Writes into the proof that labels can be dropped, where that ends it.
    pub fn record_drops(&mut self, drops: &[(usize, Vec<usize>)]) {
        let mut steps = self.drop_steps(drops);
        self.proof.append(&mut steps);
    }

    /// Drops labels in place (variable and positions, in the order of the proof).
    pub fn restrict(&mut self, drops: &[(usize, Vec<usize>)]) {
        self.record_moves();
        let mut rest = self.restricted(drops);
        self.proof.append(&mut rest.proof);
        rest.proof = mem::take(&mut self.proof);
        rest.buckets = mem::take(&mut self.buckets);
        *self = rest;
    }

    /// Eliminates a variable: its tables are added up and minimised over it. Returns the number of entries added up;
    /// none, and all is as before, where the watch ended it.
    pub fn eliminate(&mut self, variable: usize, watch: &Watch) -> Option<u64> {
        debug_assert!(self.open[variable], "only open variables are eliminated");
        let costs = mem::take(&mut self.unary[variable]);
        let mut tables = vec![Table {
            scope: vec![variable],
            shape: vec![costs.len()],
            costs,
        }];
        for index in self.incident[variable].clone() {
            tables.push(self.take(index));
        }
        let Some(result) = minimise_over(variable, &tables, watch) else {
            let mut tables = tables.into_iter();
            self.unary[variable] = tables.next().expect("its own costs").costs;
            tables.for_each(|table| self.add(table));
            return None;
        };
        let entries = (result.costs.len() * self.labels[variable].len()) as u64;
        let scope = std::iter::once(&variable).chain(&result.scope);
        let labels = scope.map(|&v| (v, Rc::clone(&self.labels[v]))).collect();
        self.open[variable] = false;
        self.buckets.push(Bucket {
            variable,
            tables,
            labels,
        });
        self.proof.push(Step::Eliminate { variable });
        self.add(result);
        Some(entries)
    }

    /// Adds one table to another, whose variables include its own.
    pub fn join(&mut self, index: usize, into: usize) {
        let table = self.take(index);
        self.tables[into].add(&table);
        self.proof.push(Step::Join {
            scope: table.scope,
            into: self.tables[into].scope.clone(),
        });
    }

    /// The best assignment of the whole problem, once every variable is fixed or eliminated: it costs `constant`.
    pub fn assignment(&self) -> Vec<usize> {
        let first = |labels: &Rc<[usize]>| labels.first().copied().unwrap_or_default();
        let mut assignment: Vec<usize> = self.labels.iter().map(first).collect();
        self.complete(&mut assignment);
        assignment
    }

    /// Gives each eliminated variable its best label, the others having theirs.
    pub fn complete(&self, assignment: &mut [usize]) {
        for bucket in self.buckets.iter().rev() {
            assignment[bucket.variable] = bucket.best_label(assignment);
        }
    }
}
