//! `autoscale`: lets the replicas of an object follow the usage of its Pods.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{
    Outcome, Session,
    error::Failure,
    pods::kind_of,
    target::{Selection, Target},
    write::Writing,
};
use podwright_api::{FieldValidation, Object, Quantity};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// The lower limit for the number of Pods that the autoscaler can set [default: 1]
    #[arg(long, value_name = "COUNT", default_value_t = -1, allow_negative_numbers = true, hide_default_value = true)]
    min: i32,
    /// The upper limit for the number of Pods that the autoscaler can set
    #[arg(long, value_name = "COUNT", default_value_t = -1, allow_negative_numbers = true, hide_default_value = true)]
    max: i32,
    /// Target average CPU usage: a percentage of requests (70%) or a quantity (500m)
    #[arg(long, value_name = "AMOUNT")]
    cpu: Option<String>,
    /// Target average memory usage: a percentage of requests (60%) or a quantity (200Mi)
    #[arg(long, value_name = "AMOUNT")]
    memory: Option<String>,
    /// --cpu as older kubectls have it
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = -1,
        allow_negative_numbers = true,
        conflicts_with = "cpu",
        hide = true
    )]
    cpu_percent: i32,
    /// The name for the newly created object [default: the name of the input resource]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    writing: Writing,
}

pub async fn run(args: Args, session: &Session) -> Outcome {
    let spec = spec(&args).map_err(Failure::usage)?;
    let mut none = true;
    for target in args.selection.several(false, session).await? {
        for object in args.selection.fetch(&target, session).await? {
            none = false;
            let autoscaler = autoscaler(&args, &spec, &target, &object).map_err(Failure::usage)?;
            let kind = kind_of("horizontalpodautoscalers.autoscaling");
            let made = args.writing.create(session, kind, &autoscaler, FieldValidation::Strict).await?;
            let done = if args.writing.is_client_side() { "created" } else { "autoscaled" };
            args.writing.tell(kind, &made, done)?;
        }
    }
    match none {
        true => Err(Failure::usage("no objects passed to autoscale")),
        false => Ok(ExitCode::SUCCESS),
    }
}

/// The spec without its target; errors have kubectl's words.
fn spec(args: &Args) -> Result<Value, String> {
    let (min, max) = (args.min, args.max);
    if max < 1 {
        return Err(format!("--max=MAXPODS is required and must be at least 1, max: {max}"));
    }
    if max < min {
        return Err(format!("--max=MAXPODS must be larger or equal to --min=MINPODS, max: {max}, min: {min}"));
    }
    let percent = (args.cpu_percent > 0).then(|| format!("{}%", args.cpu_percent));
    let cpu = args.cpu.as_ref().or(percent.as_ref());
    let wanted = [("cpu", "m", cpu), ("memory", "Mi", args.memory.as_ref())];
    let wanted = wanted.into_iter().filter_map(|(resource, unit, text)| Some((resource, unit, text?)));
    let metrics: Vec<Value> =
        wanted.map(|(resource, unit, text)| metric(resource, unit, text)).collect::<Result<_, _>>()?;
    let mut spec = json!({ "maxReplicas": max });
    if min > 0 {
        spec["minReplicas"] = min.into();
    }
    if !metrics.is_empty() {
        spec["metrics"] = metrics.into();
    }
    Ok(spec)
}

/// A resource metric: `70%`, `500m`; a plain number has the unit `unit`.
fn metric(resource: &str, unit: &str, text: &str) -> Result<Value, String> {
    let text = text.trim();
    let target = match text.strip_suffix('%') {
        Some(percent) => match percent.parse::<i32>() {
            Ok(percent) if percent >= 0 => json!({ "type": "Utilization", "averageUtilization": percent }),
            _ => return Err(format!("invalid percentage value: {percent}")),
        },
        None => {
            let bare = text.parse::<f64>().map(|number| format!("{number}{unit}"));
            let amount = bare.as_deref().unwrap_or(text).parse::<Quantity>();
            let amount = amount.map_err(|_| format!("invalid resource {resource} value: {text}"))?;
            json!({ "type": "AverageValue", "averageValue": amount.to_string() })
        }
    };
    Ok(json!({ "type": "Resource", "resource": { "name": resource, "target": target } }))
}

fn autoscaler(args: &Args, spec: &Value, target: &Target, object: &Object) -> Result<Object, String> {
    if target.kind.scale().is_none() {
        return Err(format!("cannot autoscale a {}: it has no replicas", target.kind.kind));
    }
    let reference = json!({ "apiVersion": target.kind.api_version(), "kind": target.kind.kind, "name": object.name() });
    let mut whole = json!({ "scaleTargetRef": reference });
    for (field, value) in spec.as_object().into_iter().flatten() {
        whole[field] = value.clone();
    }
    let name = args.name.as_deref().unwrap_or(object.name());
    let metadata = json!({ "name": name, "namespace": object.namespace() });
    Ok(Object(json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": whole,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(flags: &str) -> Result<Value, String> {
        let words = ["deployment/web"].into_iter().chain(flags.split_whitespace());
        spec(&crate::flags::<Args>(words))
    }

    #[test]
    fn flags_are_read_as_kubectl_reads_them() {
        let metric =
            |name: &str, target: Value| json!({ "type": "Resource", "resource": { "name": name, "target": target } });
        let percent = |percent: i32| json!({ "type": "Utilization", "averageUtilization": percent });
        let amount = |amount: &str| json!({ "type": "AverageValue", "averageValue": amount });
        for (flags, wanted) in [
            ("--max=10", json!({ "maxReplicas": 10 })),
            ("--max=10 --min=0", json!({ "maxReplicas": 10 })),
            (
                "--max=10 --min=2 --cpu=70%",
                json!({ "maxReplicas": 10, "minReplicas": 2, "metrics": [metric("cpu", percent(70))] }),
            ),
            ("--max=3 --cpu-percent=80", json!({ "maxReplicas": 3, "metrics": [metric("cpu", percent(80))] })),
            ("--max=3 --cpu-percent=-1", json!({ "maxReplicas": 3 })),
            (
                "--max=3 --cpu=500 --memory=512",
                json!({ "maxReplicas": 3, "metrics": [metric("cpu", amount("500m")), metric("memory", amount("512Mi"))] }),
            ),
            (
                "--max=3 --cpu=2000m --memory=3Gi",
                json!({ "maxReplicas": 3, "metrics": [metric("cpu", amount("2")), metric("memory", amount("3Gi"))] }),
            ),
        ] {
            assert_eq!(told(flags), Ok(wanted), "{flags}");
        }
    }

    #[test]
    fn wrong_flags_are_refused_as_kubectl_refuses_them() {
        for (flags, why) in [
            ("", "--max=MAXPODS is required and must be at least 1, max: -1"),
            ("--max=0", "--max=MAXPODS is required and must be at least 1, max: 0"),
            ("--max=1 --min=2", "--max=MAXPODS must be larger or equal to --min=MINPODS, max: 1, min: 2"),
            ("--max=1 --cpu=abc", "invalid resource cpu value: abc"),
            ("--max=1 --memory=512MiB", "invalid resource memory value: 512MiB"),
            ("--max=1 --cpu=-5%", "invalid percentage value: -5"),
        ] {
            assert_eq!(told(flags), Err(why.to_owned()), "{flags}");
        }
    }
}
