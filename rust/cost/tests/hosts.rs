//! Hosts with fast links inside and slow ones between them.

use super::*;
use crate::cluster::Group;

/// Hosts of so many devices, ten times as fast inside.
fn hosts(counts: &[usize]) -> Cluster {
    let mut tree = cluster(&vec![1e9; counts.iter().sum()], BANDWIDTH, LATENCY);
    let mut devices = std::mem::take(&mut tree.root.members).into_iter();
    let link = Link {
        bandwidth: 10.0 * BANDWIDTH,
        latency: LATENCY / 10.0,
        ..Link::default()
    };
    let members = counts.iter().map(|&count| {
        let (link, members) = (link.clone(), devices.by_ref().take(count).collect());
        Member::Group(Group { link, members })
    });
    tree.root.members = members.collect();
    tree.validate().expect("a valid cluster");
    tree
}

#[test]
fn rings_pass_the_slow_link_of_a_host_once_and_exchanges_share_it() {
    let (graph, tree) = (product(), hosts(&[8, 8]));
    let shares = vec![vec![1.0 / 16.0; 16]; 3];
    let costs = CostModel::new(&graph, &tree, &shares);
    let [r, p, m, n] = ["R", "P", "S0", "S1"].map(placements);
    let seconds = |from, to, how| costs.collective(2, from, to, how);
    // Of 64 bytes, one device of each host sends what all pass on.
    let ring = 15.0 / 16.0 * 64.0 / BANDWIDTH;
    close(seconds(&p, &r, Implementation::Builtin), 30.0 * LATENCY + 2.0 * ring);
    close(seconds(&m, &r, Implementation::Padded), 15.0 * LATENCY + ring);
    close(seconds(&p, &m, Implementation::Padded), 15.0 * LATENCY + ring);
    // Each share crosses once.
    close(
        seconds(&m, &r, Implementation::Grouped),
        64.0 * LATENCY + 64.0 / BANDWIDTH,
    );
    // A host has half of the tensor, and sends half of that; or eight devices send their shares of 4 bytes to eight others.
    close(
        seconds(&m, &n, Implementation::Exchange),
        15.0 * LATENCY + 64.0 / 4.0 / BANDWIDTH,
    );
    close(
        seconds(&m, &r, Implementation::Exchange),
        15.0 * LATENCY + 8.0 * 8.0 * 4.0 / BANDWIDTH,
    );
    close(
        seconds(&p, &m, Implementation::Exchange),
        15.0 * LATENCY + 8.0 * 8.0 * 4.0 / BANDWIDTH,
    );
}

#[test]
fn the_host_whose_link_is_busiest_counts() {
    // Of five devices, the four of one host send a quarter of what they send to the other, which sends all that it does.
    close(hosts(&[4, 1]).exchange_bandwidth(), BANDWIDTH);
    close(hosts(&[3, 2]).exchange_bandwidth(), BANDWIDTH * 4.0 / 6.0);
    // One host alone, and one device, have no slow link.
    close(hosts(&[4]).exchange_bandwidth(), 10.0 * BANDWIDTH);
    close(cluster(&[1e9; 4], BANDWIDTH, LATENCY).exchange_bandwidth(), BANDWIDTH);
    close(cluster(&[1e9], BANDWIDTH, LATENCY).exchange_bandwidth(), BANDWIDTH);
}
