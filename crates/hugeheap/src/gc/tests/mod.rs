//! What the heap promises, on the simulated kernel: one test per promise, one file per part.

mod ahead;
mod checks;
mod cleared;
mod copies;
mod depart;
mod evacuate;
mod events;
mod exhausted;
mod finalizers;
mod growing;
mod joint;
mod limits;
mod major;
mod minor;
mod order;
mod overdue;
mod ready;
mod refused;
mod roots;
mod scan;
mod settings;
mod staying;
mod trace;
mod weak;

use super::*;
use crate::arena::{Arenas, Settings as ArenaSettings};
use crate::lock::Lock;
use crate::object::{Source, Space};
use core::time::Duration;
use hugeheap_os::AddressRange;
use hugeheap_os::simulated::{Config, Kernel};

/// Arenas on a simulated kernel, behind a lock.
struct World {
    arenas: Lock<Arenas<Kernel>>,
    kernel: Kernel,
    /// What a maintenance thread does while the program waits for it; `None`: there is no such thread.
    waiting: Lock<Option<Waiting>>,
    /// How often numbers were shown to other processes.
    shown: Lock<u64>,
    /// How often the arenas' lock was taken.
    locked: Lock<u64>,
}

/// What happens while a heap waits so long.
type Waiting = fn(&World, Duration);

impl Source for World {
    type Os = Kernel;
    fn with<R>(&'static self, work: impl FnOnce(&mut Arenas<Kernel>) -> R) -> R {
        *self.locked.lock() += 1;
        work(&mut self.arenas.lock())
    }
    fn wait_for_arenas(&'static self, time: Duration) -> bool {
        let waiting = *self.waiting.lock();
        waiting.inspect(|happens| happens(self, time)).is_some()
    }
    fn changed(&'static self) {
        *self.shown.lock() += 1;
    }
    fn os(&self) -> &Kernel {
        &self.kernel
    }
}

/// A space of its own for a test. Never freed, as in a process.
fn space() -> &'static Space<World> {
    space_with(128 << 20)
}

/// The same with regions of so many bytes.
fn space_with(region: usize) -> &'static Space<World> {
    let settings = ArenaSettings { region: Some(region), ..ArenaSettings::DEFAULT };
    space_on(Config::default(), settings)
}

fn space_on(config: Config, settings: ArenaSettings) -> &'static Space<World> {
    // Access for real: what is written without its metadata being ready crashes.
    let kernel = Kernel::new(Config { enforce_access: true, ..config });
    let arenas = Lock::new(Arenas::new(kernel.clone(), settings));
    let (waiting, shown, locked) = (Lock::new(None), Lock::new(0), Lock::new(0));
    let world = Box::leak(Box::new(World { arenas, kernel, waiting, shown, locked }));
    Box::leak(Box::new(Space::new(world)))
}

/// A heap, and the types that tests use.
struct Test {
    heap: Heap<World>,
    space: &'static Space<World>,
    /// A number, and two references.
    pair: TypeId,
    /// Any number of references.
    array: TypeId,
    /// Bytes.
    text: TypeId,
}

const NUMBER: usize = 8;
const LEFT: usize = 16;
const RIGHT: usize = 24;
const PAIR: usize = 32;

impl Test {
    fn new(settings: Settings) -> Self {
        Self::over(space(), settings)
    }

    fn over(space: &'static Space<World>, settings: Settings) -> Self {
        let nursery = settings.nursery.or(Some(64 << 10));
        Self::as_set(space, Settings { nursery, ..settings })
    }

    /// The same with the nursery that is chosen, if none is set.
    fn as_set(space: &'static Space<World>, settings: Settings) -> Self {
        let mut heap = Heap::new(space, settings).expect("memory");
        let mut register = |layout| heap.register(layout).expect("a right layout");
        let pair = register(Layout::fixed(PAIR).slots(&[LEFT, RIGHT]));
        let array = register(Layout::variable(16, 8).item_slots(&[0]));
        let text = register(Layout::variable(16, 1));
        Self { heap, space, pair, array, text }
    }

    /// A heap with all checks that do not slow tests down.
    fn checked() -> Self {
        let checks = Checks { verify: true, barriers: true, poison: true, ..Checks::default() };
        Self::new(Settings { checks, ..Settings::default() })
    }

    fn types(&self) -> Types3 {
        Types3 { pair: self.pair, array: self.array, text: self.text }
    }

    fn run<R>(&mut self, work: impl FnOnce(&mut Scope<'_, World>, Types3) -> R) -> R {
        let types = self.types();
        let result = self.heap.scope(|scope| work(scope, types));
        self.heap.verify(&mut []).unwrap_or_else(|mistake| panic!("{mistake}"));
        result
    }

    /// Ends the heap; everything must be back in the arenas.
    fn end(self) {
        let space = self.space;
        drop(self.heap);
        let arenas = space.source().arenas.lock();
        arenas.verify().unwrap_or_else(|problem| panic!("{problem}"));
        assert_eq!(arenas.snapshot().live, 0, "everything was given back");
        drop(arenas);
        assert_eq!(space.source().kernel.violations(), []);
    }
}

#[derive(Clone, Copy)]
struct Types3 {
    pair: TypeId,
    array: TypeId,
    text: TypeId,
}

/// A pair with a number.
fn pair<'s>(scope: &mut Scope<'s, World>, types: Types3, number: u64) -> Local<'s> {
    let local = scope.allocate(types.pair, 0).expect("memory");
    scope.write(local, NUMBER, number);
    local
}

/// A list of the numbers from `count − 1` down to 0.
fn list<'s>(scope: &mut Scope<'s, World>, types: Types3, count: u64) -> Local<'s> {
    let head = pair(scope, types, 0);
    extend(scope, types, head, count);
    head
}

/// Makes a list of one number one of `count`.
fn extend(scope: &mut Scope<'_, World>, types: Types3, head: Local<'_>, count: u64) {
    for number in 1..count {
        scope.scope(|scope| {
            let next = pair(scope, types, number);
            scope.set(next, LEFT, Some(head));
            scope.assign(head, next);
        });
    }
}

fn check_list(scope: &mut Scope<'_, World>, head: Local<'_>, count: u64) {
    scope.scope(|scope| {
        let at = scope.scope_for(|inner| -> Result<_, Exhausted> { inner.same_as(head) }).expect("memory");
        for number in (0..count).rev() {
            assert_eq!(scope.read(at, NUMBER), number);
            let ended = scope.scope(|scope| match scope.get(at, LEFT).expect("memory") {
                Some(next) => {
                    scope.assign(at, next);
                    false
                }
                None => true,
            });
            assert_eq!(ended, number == 0);
        }
    });
}
