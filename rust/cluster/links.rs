//! What a tree of links means for collectives over all devices.

use super::{Cluster, Group, Link, Member};

impl Cluster {
    /// The link that rings over all devices are bound by: the least bandwidth and the greatest latency of the tree's links.
    ///
    /// A ring in rank order enters and leaves each host once, so that one device at a time has the host's link to itself.
    /// The link of a group with one member joins nothing and does not count, except where the tree has no other.
    pub fn bottleneck(&self) -> Link {
        let joints = self.joints();
        if joints.is_empty() {
            return self.root.link.clone();
        }
        Link {
            bandwidth: joints
                .iter()
                .map(|(link, _)| link.bandwidth)
                .fold(f64::INFINITY, f64::min),
            latency: joints.iter().map(|(link, _)| link.latency).fold(0.0, f64::max),
            ..Link::default()
        }
    }

    /// Bytes per second of each device where all send to all others at once, as much to each.
    ///
    /// The devices of a host share its link for what leaves the host: of `n` devices with `m` in the host that is `m (n -
    /// m) / (n - 1)` times what one device sends.
    pub fn exchange_bandwidth(&self) -> f64 {
        let devices = self.devices().len() as f64;
        let rates = self.joints().into_iter().map(|(link, behind)| {
            let behind = behind as f64;
            link.bandwidth * (devices - 1.0) / (behind * (devices - behind))
        });
        let least = rates.fold(f64::INFINITY, f64::min);
        if least.is_finite() {
            least
        } else {
            self.root.link.bandwidth
        }
    }

    /// Each member of a group of several: its link, and how many devices are behind it.
    fn joints(&self) -> Vec<(&Link, usize)> {
        fn visit<'a>(group: &'a Group, joints: &mut Vec<(&'a Link, usize)>) -> usize {
            let mut devices = 0;
            for member in &group.members {
                let behind = match member {
                    Member::Device(_) => 1,
                    Member::Group(group) => visit(group, joints),
                };
                if group.members.len() > 1 {
                    joints.push((&group.link, behind));
                }
                devices += behind;
            }
            devices
        }
        let mut joints = Vec::new();
        visit(&self.root, &mut joints);
        joints
    }
}
