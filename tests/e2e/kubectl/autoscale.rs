//! `autoscale`, and what is shown of HorizontalPodAutoscalers.

use super::{Cluster, Fails, Has, Is};

#[test]
fn autoscalers_are_made_and_shown() {
    let Some(cluster) = Cluster::without_node() else { return };
    cluster.drill(&[
        ("kubectl create deployment web --image=$IMAGE", Has(&["created"])),
        (
            "kubectl autoscale deployment web --min=2 --max=5 --cpu-percent=70",
            Has(&["horizontalpodautoscaler.autoscaling/web autoscaled"]),
        ),
        (
            "kubectl autoscale deployment web --min=6 --max=5",
            Fails(1, "--max=MAXPODS must be larger or equal to --min=MINPODS, max: 5, min: 6"),
        ),
        ("kubectl wait deployment/web --for=jsonpath='{.spec.replicas}'=2 --timeout=20s", Has(&["condition met"])),
        (
            "kubectl get hpa web --no-headers | tr -s ' ' | cut -d' ' -f1-6",
            Is("web Deployment/web cpu: <unknown>/70% 2 5"),
        ),
        (
            "kubectl describe hpa web",
            Has(&[
                "Reference:",
                "Deployment/web",
                "resource cpu on pods  (as a percentage of request):  <unknown> / 70%",
                "Deployment pods:",
                "AbleToScale",
                "SucceededRescale",
                "New size: 2; reason: Current number of replicas below Spec.MinReplicas",
            ]),
        ),
    ]);
}
