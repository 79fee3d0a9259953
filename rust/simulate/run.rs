//! The walk over a program that a simulation is: what every stream does when.

use std::collections::VecDeque;

use super::{Event, Stream, collective_title};
use crate::cost::{CostModel, Transfer};
use crate::graph::{Choice, Graph};
use crate::validate::{Step, ValidProgram};

/// A step as far as it has been walked.
pub(super) struct Run<'a> {
    graph: &'a Graph,
    costs: &'a CostModel<'a>,
    program: &'a ValidProgram,
    /// The devices that are simulated: the first of each kind, or all.
    pub members: Vec<usize>,
    /// By member: when its computation stream has done what it was given.
    pub clock: Vec<f64>,
    /// When the communication streams have done what they were given; collectives take all devices.
    pub network: f64,
    /// Start and end of the collectives so far, in order; they do not overlap each other.
    collectives: Vec<(f64, f64)>,
    /// Collectives that must have ended where another one starts, and that one; those that are still to come.
    ended: VecDeque<(usize, usize)>,
    /// By value: the first instruction that reads it, and by position: operators before it. Empty without contention.
    read_first: Vec<usize>,
    operators: Vec<usize>,
    /// By position: when the collective there ends.
    ends: Vec<f64>,
    /// By member: the first of [`Self::collectives`] that may end after its clock.
    pending: Vec<usize>,
    /// By member: when the last instruction began; never before the one ahead of it.
    pub begun: Vec<f64>,
    /// By value and member: when it is there.
    ready: Vec<Vec<f64>>,
    pub compute: Vec<f64>,
    pub communication: f64,
    record: bool,
    /// The instruction that is at hand.
    position: usize,
    pub timeline: Vec<Event>,
}

impl<'a> Run<'a> {
    pub fn new(costs: &'a CostModel<'a>, program: &'a ValidProgram, record: bool, every: bool) -> Self {
        let members = match every {
            true => (0..costs.devices()).collect(),
            false => costs.kinds().to_vec(),
        };
        let count = members.len();
        let (mut read_first, mut operators) = (Vec::new(), Vec::new());
        if costs.contention() > 0.0 && costs.overlap() > 0.0 {
            read_first = program.read_first();
            let takes_time = |operator: usize, choice: usize| {
                let choice = &costs.graph().operators[operator].choices[choice];
                let mut kinds = costs.kinds().iter();
                kinds.any(|&device| costs.compute(operator, choice, device) > 0.0)
            };
            operators.push(0);
            operators.extend(program.steps.iter().scan(0, |before, step| {
                *before += usize::from(matches!(
                    step,
                    Step::Compute { operator, choice, .. } if takes_time(*operator, *choice)
                ));
                Some(*before)
            }));
        }
        Self {
            graph: costs.graph(),
            costs,
            program,
            members,
            clock: vec![0.0; count],
            network: 0.0,
            collectives: Vec::new(),
            ended: program.ended(costs.graph()).into(),
            read_first,
            operators,
            ends: vec![0.0; program.steps.len()],
            pending: vec![0; count],
            begun: vec![0.0; count],
            ready: vec![vec![0.0; count]; program.values.len()],
            compute: vec![0.0; count],
            communication: 0.0,
            record,
            position: 0,
            timeline: Vec::new(),
        }
    }

    /// Takes the next instruction.
    pub fn step(&mut self, position: usize) {
        let program = self.program;
        self.position = position;
        match &program.steps[position] {
            Step::Input { .. } | Step::Free { .. } | Step::Output { .. } => {}
            Step::Compute {
                operator,
                choice,
                reads,
                writes,
            } => self.operator(*operator, *choice, reads, writes),
            Step::Convert {
                read,
                write,
                implementation: None,
                ..
            } => self.ready[*write] = self.ready[*read].clone(),
            Step::Convert {
                conversion,
                read,
                write,
                implementation: Some(_),
                ..
            } => {
                // A bucket is carried out at its first instruction.
                let Some(transfer) = Transfer::at(self.graph, program, position) else {
                    return;
                };
                if self.costs.is_idle(&transfer) {
                    self.ready[*write] = self.ready[*read].clone();
                    return;
                }
                let ends = |position: usize| match &program.steps[position] {
                    Step::Convert { read, write, .. } => (*read, *write),
                    _ => unreachable!("a bucket consists of conversions"),
                };
                let (reads, writes): (Vec<usize>, Vec<usize>) = program.together(position).map(ends).unzip();
                let ready = reads.iter().flat_map(|read| &self.ready[*read]);
                let ready = ready.copied().fold(0.0, f64::max);
                let name = || collective_title(self.graph, program, *conversion, &reads);
                self.meet(position);
                let slowed = if self.beside(position, &writes) {
                    self.costs.contention()
                } else {
                    0.0
                };
                let end = self.collective(self.costs.transfer(&transfer) + slowed, ready, name);
                self.ends[position] = end;
                writes.iter().for_each(|write| self.ready[*write].fill(end));
            }
        }
    }

    /// Seconds until every stream of every device is done with all so far.
    pub fn seconds(&self) -> f64 {
        self.clock.iter().copied().fold(self.network, f64::max)
    }

    /// Waits for the collectives that must have ended before that at a position.
    fn meet(&mut self, position: usize) {
        while let Some((before, _)) = self.ended.pop_front_if(|(_, by)| *by <= position) {
            let end = self.ends[before];
            self.clock.iter_mut().for_each(|clock| *clock = clock.max(end));
        }
    }

    /// Whether there is something to compute between a collective and the first reader of its results.
    fn beside(&self, position: usize, results: &[usize]) -> bool {
        !self.operators.is_empty()
            && results
                .iter()
                .map(|result| self.read_first[*result])
                .min()
                .is_some_and(|reader| self.operators[reader] > self.operators[*self.program.together(position).end()])
    }

    /// A collective of so many seconds whose operand is `ready`; when it ends.
    fn collective(&mut self, seconds: f64, ready: f64, name: impl Fn() -> String) -> f64 {
        let start = self.clock.iter().copied().fold(self.network.max(ready), f64::max);
        let end = start + seconds;
        self.network = end;
        self.communication += seconds;
        self.collectives.push((start, end));
        self.begun.iter_mut().for_each(|begun| *begun = begun.max(start));
        if self.record {
            for &device in &self.members {
                self.timeline.push(Event {
                    device,
                    stream: Stream::Communication,
                    instruction: self.position,
                    name: name(),
                    start,
                    end,
                });
            }
        }
        end
    }

    fn operator(&mut self, operator: usize, choice: usize, reads: &[usize], writes: &[usize]) {
        let node = &self.graph.operators[operator];
        let choice = &node.choices[choice];
        let there = |member: usize| reads.iter().map(|value| self.ready[*value][member]).fold(0.0, f64::max);
        let mut there: Vec<f64> = (0..self.members.len()).map(there).collect();
        self.part(operator, choice, &mut there);
        for collective in &choice.collectives {
            let ready = there.iter().copied().fold(0.0, f64::max);
            let name = || format!("{} in {}", collective.conversion, node.name);
            let end = self.collective(self.costs.transfer(&Transfer::inside(collective)), ready, name);
            there.fill(end);
            self.part(operator, choice, &mut there);
        }
        for value in writes {
            self.ready[*value].clone_from(&there);
        }
    }

    /// One of the equal parts of an operator. `there`: when each member's operands are there; becomes when its
    /// results are.
    fn part(&mut self, operator: usize, choice: &Choice, there: &mut [f64]) {
        let node = &self.graph.operators[operator];
        for (member, there) in there.iter_mut().enumerate() {
            let device = self.members[member];
            let seconds = self.costs.compute(operator, choice, device) / choice.parts();
            let mut done = *there;
            if seconds > 0.0 {
                let start;
                let ready = self.clock[member].max(*there);
                let pending = &mut self.pending[member];
                (start, done) = advance(&self.collectives, pending, self.costs.overlap(), ready, seconds);
                self.clock[member] = done;
                self.begun[member] = self.begun[member].max(start);
                self.compute[member] += seconds;
                if self.record {
                    let (stream, name) = (Stream::Computation, node.name.clone());
                    self.timeline.push(Event {
                        device,
                        stream,
                        instruction: self.position,
                        name,
                        start,
                        end: done,
                    });
                }
            }
            *there = done;
        }
    }
}

/// Start and end of `work` seconds of computation that can start at `ready`, slowed to `rate` by the `collectives`
/// meanwhile. Those before `pending` have ended; it moves on past those that end before the computation does.
pub(super) fn advance(collectives: &[(f64, f64)], pending: &mut usize, rate: f64, ready: f64, work: f64) -> (f64, f64) {
    let (mut start, mut now, mut left) = (ready, ready, work);
    while let Some(&(begin, end)) = collectives.get(*pending) {
        if now + left <= begin {
            break;
        }
        left -= (begin - now).max(0.0);
        now = now.max(begin);
        // The sum above rounds otherwise than the difference: nothing is left where the collective begins.
        if left <= 0.0 {
            return (start, now);
        }
        if now < end {
            if left <= rate * (end - now) {
                return (start, now + left / rate);
            }
            left -= rate * (end - now);
            now = end;
            // Nothing was done before or during it: the operator starts after it.
            if left == work {
                start = end;
            }
        }
        *pending += 1;
    }
    (start, now + left)
}
