//! The devices and the links between them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One accelerator, or one CPU process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name, for people.
    pub name: String,
    /// FLOP/s by element type; the key `default` stands for every type that has no entry.
    pub flops: BTreeMap<String, f64>,
    /// Bytes per second between the device and its memory.
    pub memory_bandwidth: f64,
    /// Bytes that a training job may use.
    pub memory: f64,
    /// Seconds that starting one operator costs.
    pub launch_overhead: f64,
}

/// A link between the members of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Bytes per second of each member, each way.
    pub bandwidth: f64,
    /// Seconds until the first byte arrives.
    pub latency: f64,
}

/// A member of a group: a device, or a group of its own (a host within a cluster).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Member {
    /// One device.
    Device(Device),
    /// A group of devices that share a link.
    Group(Group),
}

/// Devices or groups that are joined by one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The link that joins the members.
    pub link: Link,
    /// The members, in rank order.
    pub members: Vec<Member>,
}

/// Measured cost of a collective over the whole cluster: `latency + bytes / bandwidth`, of the bytes that the slowest rank moves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveCost {
    /// Seconds for nothing.
    pub latency: f64,
    /// Bytes per second.
    pub bandwidth: f64,
}

/// The machines at hand: a tree of groups with devices as leaves. Ranks count the leaves from left to right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Always `hap-cluster-1`.
    pub format: String,
    /// The tree.
    pub root: Group,
    /// Measured collectives by `kind/implementation`, such as `all_gather/padded`; others are derived from the links.
    #[serde(default)]
    pub collectives: BTreeMap<String, CollectiveCost>,
    /// Share of communication that hides behind computation, 0 to 1.
    #[serde(default)]
    pub overlap: f64,
}
