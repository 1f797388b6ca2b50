//! Work: writes and their dependencies, as a value; and its execution.

use futures::future::{BoxFuture, join_all};

use super::write::Write;

/// A slow start is given up after this many consecutive refusals of single writes.
const MAX_REFUSALS: usize = 2;

/// Writes and their required order. A refusal stops what follows it in its chain, and nothing else.
#[derive(Clone, Debug)]
pub enum Work {
    Write(Box<Write>),
    /// One after the other: each starts when the one before it has succeeded as a whole.
    Chain(Vec<Work>),
    /// Concurrently: none depends on another.
    Beside(Vec<Work>),
    /// Independent, but alike: a quota or an invalid template that refuses all of them is hit by few requests. First one, then two,
    /// four, ... run concurrently as long as all succeed; after a refusal one again.
    SlowStart(Vec<Work>),
}

/// Executes one write.
pub type Act<'a, T, R> = dyn Fn(Write) -> BoxFuture<'a, Result<T, R>> + Sync + 'a;

impl Default for Work {
    fn default() -> Work {
        Work::Beside(Vec::new())
    }
}

impl From<Write> for Work {
    fn from(write: Write) -> Work {
        Work::Write(Box::new(write))
    }
}

impl From<Option<Write>> for Work {
    fn from(write: Option<Write>) -> Work {
        write.map(Work::from).unwrap_or_default()
    }
}

impl From<Vec<Write>> for Work {
    fn from(writes: Vec<Write>) -> Work {
        Work::Beside(writes.into_iter().map(Work::from).collect())
    }
}

impl Work {
    /// `next` starts when this has succeeded as a whole.
    pub fn then(self, next: impl Into<Work>) -> Work {
        match (self, next.into()) {
            (first, next) if next.is_empty() => first,
            (first, next) if first.is_empty() => next,
            (Work::Chain(mut links), next) => {
                links.push(next);
                Work::Chain(links)
            }
            (first, next) => Work::Chain(vec![first, next]),
        }
    }

    /// `other` runs whatever the result of this.
    pub fn beside(self, other: impl Into<Work>) -> Work {
        match (self, other.into()) {
            (first, other) if other.is_empty() => first,
            (first, other) if first.is_empty() => other,
            (Work::Beside(mut all), other) => {
                all.push(other);
                Work::Beside(all)
            }
            (first, other) => Work::Beside(vec![first, other]),
        }
    }

    /// All writes, in order.
    pub fn writes(&self) -> Box<dyn Iterator<Item = &Write> + '_> {
        match self {
            Work::Write(write) => Box::new(std::iter::once(&**write)),
            Work::Chain(parts) | Work::Beside(parts) | Work::SlowStart(parts) => {
                Box::new(parts.iter().flat_map(Work::writes))
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.writes().next().is_none()
    }

    /// Limits slow-start writes to this many in total; returns how many are left out.
    pub fn cut(&mut self, most: &mut usize) -> usize {
        match self {
            Work::Write(_) => 0,
            Work::Chain(parts) | Work::Beside(parts) => parts.iter_mut().map(|part| part.cut(most)).sum(),
            Work::SlowStart(parts) => {
                let left_out = parts.split_off(parts.len().min(*most)).len();
                *most -= parts.len();
                left_out
            }
        }
    }

    /// The slow-start writes.
    pub fn slow(&self) -> Box<dyn Iterator<Item = &Write> + '_> {
        match self {
            Work::Write(_) => Box::new(std::iter::empty()),
            Work::Chain(parts) | Work::Beside(parts) => Box::new(parts.iter().flat_map(Work::slow)),
            Work::SlowStart(_) => self.writes(),
        }
    }

    /// Executes it with `act`; returns the result of each write that was started.
    pub fn carry_out<'a, T: Send + 'a, R: Send + 'a>(self, act: &'a Act<'a, T, R>) -> BoxFuture<'a, Vec<Result<T, R>>> {
        Box::pin(async move {
            match self {
                Work::Write(write) => vec![act(*write).await],
                Work::Chain(links) => {
                    let mut outcomes = Vec::new();
                    for link in links {
                        let more = link.carry_out(act).await;
                        let refused = is_refused(&more);
                        outcomes.extend(more);
                        if refused {
                            break;
                        }
                    }
                    outcomes
                }
                Work::Beside(all) => at_once(all, act).await.into_iter().flatten().collect(),
                Work::SlowStart(all) => slowly(all, act).await,
            }
        })
    }
}

fn is_refused<T, R>(outcomes: &[Result<T, R>]) -> bool {
    outcomes.iter().any(Result::is_err)
}

async fn at_once<'a, T: Send + 'a, R: Send + 'a>(all: Vec<Work>, act: &'a Act<'a, T, R>) -> Vec<Vec<Result<T, R>>> {
    join_all(all.into_iter().map(|work| work.carry_out(act))).await
}

async fn slowly<'a, T: Send + 'a, R: Send + 'a>(mut all: Vec<Work>, act: &'a Act<'a, T, R>) -> Vec<Result<T, R>> {
    let mut outcomes = Vec::new();
    let (mut width, mut patience) = (1, MAX_REFUSALS);
    while !all.is_empty() && patience > 0 {
        let later = all.split_off(width.min(all.len()));
        let some = at_once(all, act).await;
        let refused = some.iter().filter(|outcomes| is_refused(outcomes)).count();
        (width, patience) = match refused {
            0 => (width * 2, MAX_REFUSALS),
            n if n < some.len() => (1, MAX_REFUSALS),
            _ => (1, patience - 1),
        };
        outcomes.extend(some.into_iter().flatten());
        all = later;
    }
    outcomes
}
