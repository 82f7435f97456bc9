package simulate

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/psidecar/psidecar/internal/recording"
)

// Sizes of values, in bytes, that proxies share and sum: as packages proxy/codec/shared and
// proxy/aggregate have them.
const (
	leastShared = 4 << 10
	mostSummed  = 64 << 20
)

// maxKept bounds how many keys, and how many lists of keys, are remembered: where there
// are more, all are forgotten, and less is predicted.
const maxKept = 1 << 20

// keep puts a value into a map of at most that many entries, and reports whether all
// others were dropped for it.
func keep[K comparable, V any](into map[K]V, most int, key K, v V) (dropped bool) {
	if _, ok := into[key]; !ok && len(into) >= most {
		clear(into)
		dropped = true
	}
	into[key] = v
	return dropped
}

// An Aggregation is what --share-pulls and --aggregate host would save of a job with all
// keys at home. Values of a pull go to a host once until they are pushed again; pushes of a
// host's workers with the same keys, one of each worker within the wait, go as one.
type Aggregation struct {
	Each        int     `json:"workers_of_a_machine"` // most
	WaitSeconds float64 `json:"wait_seconds"`
	Pulls       uint64  `json:"pulls"`  // answers from other machines
	Shared      uint64  `json:"shared"` // of them, those whose values the machine has
	Pushes      uint64  `json:"pushes"` // to other machines
	Carried     uint64  `json:"carried"`
	// Forms are bytes of keys and values: servers (as the job is), shared_pulls,
	// summed_pushes, and host_sums (both).
	Forms []AggregationForm `json:"forms"`
}

// An AggregationForm is what crosses machines' links in one form over the whole recording.
type AggregationForm struct {
	Form    string  `json:"form"`
	Busiest float64 `json:"busiest"` // both ends of what crosses count
	Machine int     `json:"machine"` // the busiest, from 0
	Total   float64 `json:"total"`   // counted once
}

// aggregating finds out what aggregation would save. It sees all uses by time.
type aggregating struct {
	machines *machines
	workers  []int // by machine
	keyBytes int
	wait     time.Duration
	seed     maphash.Seed
	scratch  []byte

	most   int               // entries of each of the maps below
	pushes uint64            // seen so far
	pushed map[uint64]uint64 // by key: the number of its last push
	// forgotten is the number of the last push that may be of a key that pushed has
	// forgotten.
	forgotten uint64
	has       map[listOf]uint64 // what a machine was sent: the number of the last push that is in it
	open      map[listOf]*openSum
	known     map[pushedBy]bool // lists that a worker has pushed before

	plain, sharing, summing []float64 // by machine: bytes as it is, and bytes saved
	out                     Aggregation
}

// listOf is a list of keys, with lens where they have some, between a machine and a server.
type listOf struct {
	machine, server int
	list            uint64
}

type pushedBy struct {
	worker, server int
	list           uint64
}

// openSum is a sum to which pushes may still be added.
type openSum struct {
	began   int64 // in nanoseconds since 1970
	workers []int
}

func newAggregating(m *machines, keyBytes int, wait time.Duration) *aggregating {
	a := &aggregating{
		machines: m, workers: make([]int, m.count), keyBytes: keyBytes, wait: wait, seed: maphash.MakeSeed(), most: maxKept,
		pushed: map[uint64]uint64{}, has: map[listOf]uint64{}, open: map[listOf]*openSum{}, known: map[pushedBy]bool{},
		plain: make([]float64, m.count), sharing: make([]float64, m.count), summing: make([]float64, m.count),
	}
	for _, machine := range m.worker {
		a.workers[machine]++
	}
	a.out.Each, a.out.WaitSeconds = slices.Max(a.workers), wait.Seconds()
	return a
}

// take takes in a use of a worker's at a server, whose values have that many bytes.
func (a *aggregating) take(u *recording.Use, worker, server int, values float64) {
	to, at := listOf{a.machines.worker[worker], server, a.list(u)}, a.machines.server[server]
	if u.Answer {
		if u.Pull && to.machine != at {
			a.pulled(u, to, at)
		}
		return
	}
	bytes := values
	switch keys := float64(a.keyBytes * len(u.Keys)); {
	case u.Pull && u.Push:
		bytes += 2*keys + values
	case u.Pull:
		bytes += 2 * keys
	default:
		bytes += keys
	}
	between(a.plain, int32(to.machine), int32(at), bytes)
	if u.Push {
		a.pushes++
		for _, key := range u.Keys {
			if keep(a.pushed, a.most, key, a.pushes) {
				a.forgotten = a.pushes
			}
		}
		if to.machine != at {
			a.sum(u, to, worker, at)
		}
	}
}

// pulled takes in the answer to a pull from another machine.
func (a *aggregating) pulled(u *recording.Use, to listOf, at int) {
	a.out.Pulls++
	if u.Push || u.Bytes < leastShared || a.workers[to.machine] < 2 {
		return
	}
	newest := a.forgotten
	for _, key := range u.Keys {
		newest = max(newest, a.pushed[key])
	}
	if was, ok := a.has[to]; ok && was == newest {
		a.out.Shared++
		between(a.sharing, int32(to.machine), int32(at), float64(u.Bytes))
		return
	}
	keep(a.has, a.most, to, newest)
}

// sum takes in a push to another machine.
func (a *aggregating) sum(u *recording.Use, to listOf, worker, at int) {
	a.out.Pushes++
	by := pushedBy{worker, to.server, to.list}
	isFirst := !a.known[by] // which may be initial values
	keep(a.known, a.most, by, true)
	if isFirst || u.Pull || u.Bytes < leastShared || u.Bytes > mostSummed || a.workers[to.machine] < 2 {
		return
	}
	sum := a.open[to]
	if sum == nil || slices.Contains(sum.workers, worker) || u.UnixNanos-sum.began > int64(a.wait) {
		keep(a.open, a.most, to, &openSum{began: u.UnixNanos, workers: []int{worker}})
		return
	}
	sum.workers = append(sum.workers, worker)
	a.out.Carried++
	between(a.summing, int32(to.machine), int32(at), float64(u.Bytes))
}

// list returns a number of a use's keys and lens.
func (a *aggregating) list(u *recording.Use) uint64 {
	b := binary.LittleEndian.AppendUint64(a.scratch[:0], u.Bytes)
	for _, key := range u.Keys {
		b = binary.LittleEndian.AppendUint64(b, key)
	}
	for _, n := range u.Lens {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	a.scratch = b
	return maphash.Bytes(a.seed, b)
}

// result returns what came of it.
func (a *aggregating) result() *Aggregation {
	form := func(name string, saved ...[]float64) {
		f := AggregationForm{Form: name}
		for machine, bytes := range a.plain {
			for _, s := range saved {
				bytes -= s[machine]
			}
			if machine == 0 || bytes > f.Busiest {
				f.Busiest, f.Machine = bytes, machine
			}
			f.Total += bytes / 2
		}
		a.out.Forms = append(a.out.Forms, f)
	}
	form("servers")
	form("shared_pulls", a.sharing)
	form("summed_pushes", a.summing)
	form("host_sums", a.sharing, a.summing)
	return &a.out
}

// aggregationTitles are the forms' names for people.
var aggregationTitles = map[string]string{
	"servers": "as it is", "shared_pulls": "--share-pulls", "summed_pushes": "--aggregate host", "host_sums": "both",
}

// Print writes a table of the forms.
func (a *Aggregation) Print(w io.Writer) error {
	if a.Each < 2 {
		_, err := fmt.Fprintln(w, "\naggregation: nothing to save, no machine has two workers")
		return err
	}
	fmt.Fprintf(w, "\naggregation with keys at home, up to %d workers a machine: values of %d of %d pulls are there already, %d of %d pushes are carried by another's within %v\n\n",
		a.Each, a.Shared, a.Pulls, a.Carried, a.Pushes, time.Duration(a.WaitSeconds*float64(time.Second)))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "aggregation\tbusiest machine\tx below\ttotal\t")
	for _, f := range a.Forms {
		below := "-"
		if f.Busiest > 0 {
			below = fmt.Sprintf("%.2f", a.Forms[0].Busiest/f.Busiest)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t\n", aggregationTitles[f.Form], size(f.Busiest), below, size(f.Total))
	}
	return t.Flush()
}
