//! ImageLocality: prefers nodes that already have the Pod's images.

use super::{
    super::framework::{MAX_SCORE, Plugin, Point, Row},
    plain,
};
use crate::{
    cluster::{Cluster, NodeInfo},
    pod::PodInfo,
};

pub const ROW: Row = Row {
    name: "ImageLocality",
    weight: 1,
    points: &[Point::Score],
    events_to_register: &[],
    make: plain::<ImageLocality>,
};

const MEGABYTE: i64 = 1024 * 1024;
/// Less than this is pulled quickly.
const LEAST: i64 = 23 * MEGABYTE;
/// More than this, per container, makes no difference.
const MOST: i64 = 1000 * MEGABYTE;

#[derive(Default)]
struct ImageLocality;

/// An image name in the form that nodes report: with a tag.
fn normalized(image: &str) -> String {
    let tagged = image.rfind(':') > image.rfind('/') || image.contains('@');
    if tagged { image.to_owned() } else { format!("{image}:latest") }
}

impl Plugin for ImageLocality {
    /// The sizes of the images on the node, scaled by the share of nodes that have them, so that a single node does not attract all
    /// Pods of an image.
    fn score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[&NodeInfo], points: &mut [i64]) -> bool {
        let Some(spec) = pod.spec() else { return false };
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let volumes = spec.volumes.iter().flatten().filter_map(|volume| volume.image.as_ref()?.reference.as_deref());
        let names: Vec<&str> = containers.filter_map(|c| c.image.as_deref()).chain(volumes).collect();
        let most = MOST * names.len() as i64;
        let names = names.iter().map(|name| normalized(name));
        let images: Vec<(String, f64)> = names
            .map(|name| (cluster.nodes_with_image(&name), name))
            .filter(|(holders, _)| *holders > 0)
            .map(|(holders, name)| (name, holders as f64 / cluster.len().max(1) as f64))
            .collect();
        if images.is_empty() {
            return false;
        }
        for (node, points) in nodes.iter().zip(points) {
            let held = |(name, share): &(String, f64)| node.images.get(name).map(|size| (*size as f64 * share) as i64);
            let sum: i64 = images.iter().filter_map(held).sum();
            *points = (sum.clamp(LEAST, most) - LEAST) * MAX_SCORE / (most - LEAST);
        }
        true
    }
}
