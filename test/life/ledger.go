package life

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// What may become of a job. The words are those of the summary.
const (
	exactRun  = "exact"
	modelRun  = "as good as direct"
	wrongRun  = "WRONG"
	failedRun = "FAILED"
	cutRun    = "cut short at the end"
	// stalledWithoutResend is what PS-lite does too where a connection breaks.
	stalledWithoutResend = "stalled after a broken connection without PS_RESEND"
)

// ledger counts jobs by what became of them, and events by their kind. Its methods may be
// called concurrently.
type ledger struct {
	mu     sync.Mutex     // guards the rest
	runs   map[string]int // by what became of them
	kinds  map[string]int // by model
	broken int            // jobs without PS_RESEND that ran through a broken connection
	events map[string]int
	peaks  map[string]int // most memory that a kind of service held, bytes
	moved  uint64
	sums   uint64 // pushes with others' values
	byKey  uint64 // answers without the values that another worker of the host had
	// adopted connections had gone past the proxies, and were made anew.
	adopted int
}

// newLedger returns a ledger without entries.
func newLedger() *ledger {
	return &ledger{runs: map[string]int{}, kinds: map[string]int{}, events: map[string]int{}, peaks: map[string]int{}}
}

// ended counts a job that ran. broken says whether a connection broke during it.
func (x *ledger) ended(r *run, what string, broken bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.runs[what]++
	x.kinds[r.model]++
	// PS-lite itself may stall then. The ledger shows how often that happened.
	if broken && !r.resend {
		x.broken++
	}
}

// event counts an event.
func (x *ledger) event(kind string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.events[kind]++
}

// peak notes what a service of a kind has held.
func (x *ledger) peak(kind string, bytes int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.peaks[kind] = max(x.peaks[kind], bytes)
}

// summed adds pushes that had others' values.
func (x *ledger) summed(n uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sums += n
}

// sharedByKey adds answers without the values that another worker of the host had.
func (x *ledger) sharedByKey(n uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byKey += n
}

// totalSums returns how many pushes have had others' values.
func (x *ledger) totalSums() uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sums
}

// movedKeys adds keys that have moved.
func (x *ledger) movedKeys(n uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.moved += n
}

// adoptedConnections adds connections that were made anew.
func (x *ledger) adoptedConnections(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.adopted += n
}

// summary returns the life in a few lines.
func (x *ledger) summary() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var b strings.Builder
	total := 0
	for _, n := range x.runs {
		total += n
	}
	fmt.Fprintf(&b, "%d jobs: %s; wrong values: %d\n", total, counts(x.runs), x.runs[wrongRun])
	fmt.Fprintf(&b, "kinds: %s\n", counts(x.kinds))
	fmt.Fprintf(&b, "%s: %d of %d\n", stalledWithoutResend, x.runs[stalledWithoutResend], x.broken)
	fmt.Fprintf(&b, "events: %s\n", counts(x.events))
	fmt.Fprintf(&b, "keys moved: %d; sums: %d; answers by key: %d; connections adopted: %d; most memory, MiB:", x.moved, x.sums, x.byKey, x.adopted)
	for _, kind := range []string{agent, proxy, planner} {
		fmt.Fprintf(&b, " %s %d", kind, x.peaks[kind]>>20)
	}
	return b.String()
}

// counts lists counts in alphabetical order.
func counts(all map[string]int) string {
	var list []string
	for what, n := range all {
		list = append(list, fmt.Sprintf("%s %d", what, n))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
