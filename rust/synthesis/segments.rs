//! Cuts of the forward: what crosses them runs once, so that the backward makes one segment again at a time.
//!
//! Prices of memory know the moment between forward and backward. What runs a second time is held behind it: without cuts
//! a backward that makes everything again from the inputs holds it all at once.

use super::classes::Classes;
use crate::graph::Graph;

/// By operator, whether a result of it crosses one of the cuts that part the forward in so many segments.
///
/// Segments hold about as many bytes each. Of the places near an even cut that one is taken where the least crosses.
pub fn crossing(graph: &Graph, classes: &Classes, backward: &[bool], segments: usize) -> Vec<bool> {
    let mut crosses = vec![false; graph.operators.len()];
    let forward: Vec<usize> = (0..graph.operators.len())
        .filter(|&index| !backward[index] && !classes.merged[index])
        .collect();
    // By root of a class, the place of its last reader in the forward.
    let mut last = vec![0; graph.tensors.len()];
    for (place, &index) in forward.iter().enumerate() {
        for &operand in &graph.operators[index].operands {
            last[classes.root[operand]] = place;
        }
    }
    let bytes = |index: usize| -> f64 {
        let results = graph.operators[index].results.iter();
        results.map(|&result| graph.tensors[result].bytes).sum()
    };
    let total: f64 = forward.iter().map(|&index| bytes(index)).sum();
    // By place, the bytes made up to there, and those of them that are read behind it.
    let mut made = Vec::with_capacity(forward.len());
    let mut across = vec![0.0; forward.len()];
    let mut sum = 0.0;
    for (place, &index) in forward.iter().enumerate() {
        sum += bytes(index);
        made.push(sum);
        for &result in &graph.operators[index].results {
            for across in &mut across[place..last[result].max(place)] {
                *across += graph.tensors[result].bytes;
            }
        }
    }
    for cut in 1..segments {
        let (even, width) = (total * cut as f64 / segments as f64, total / segments as f64);
        let near = (0..forward.len()).filter(|&place| (made[place] - even).abs() <= width / 2.0 && across[place] > 0.0);
        let off = |place: usize| (made[place] - even).abs();
        let order = |&one: &usize, &other: &usize| {
            let narrower = across[one].total_cmp(&across[other]);
            narrower.then(off(one).total_cmp(&off(other)))
        };
        let Some(cut) = near.min_by(order) else { continue };
        for &index in &forward[..=cut] {
            crosses[index] |= graph.operators[index].results.iter().any(|&result| last[result] > cut);
        }
    }
    crosses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{InputKind, OutputKind};
    use crate::testing::{GraphBuilder, POINTWISE};

    #[test]
    fn cuts_are_even_and_where_little_crosses() {
        let mut graph = GraphBuilder::new(&[("a", 8), ("b", 8)]);
        let mut x = graph.input(InputKind::Input, "x", &[0, 1]);
        // Blocks of three operators; within a block, two tensors cross.
        for block in 0..4 {
            let one = graph.operator(&format!("one{block}"), &[x], &[0, 1], 1.0, &POINTWISE);
            let two = graph.operator(&format!("two{block}"), &[x, one], &[0, 1], 1.0, &[]);
            x = graph.operator(&format!("sum{block}"), &[one, two], &[0, 1], 1.0, &[]);
        }
        graph.output(OutputKind::Output, "x", x, None);
        let graph = graph.finish();
        let classes = Classes::new(&graph, true);
        let names = |segments| {
            let crosses = crossing(&graph, &classes, &[false; 12], segments);
            let crossing = graph.operators.iter().zip(crosses).filter(|(_, crosses)| *crosses);
            crossing.map(|(operator, _)| operator.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(1), Vec::<String>::new());
        assert_eq!(names(2), ["sum1"]);
        assert_eq!(names(4), ["sum0", "sum1", "sum2"]);
    }
}
