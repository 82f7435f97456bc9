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

// The sizes of values, in bytes, that proxies share and sum, and the part of a push, one in so many,
// that others must carry for it to wait for them. They must agree with those in packages
// proxy/codec/shared and proxy/aggregate.
const (
	leastShared = 4 << 10
	mostSummed  = 64 << 20
	leastPart   = 8
	widestByKey = 4 << 10
)

// maxKept bounds how many keys, and lists of keys, are remembered. If there are more all are
// forgotten, and less is predicted to be saved.
const maxKept = 1 << 20

// keep sets a value in a map of at most most entries. It reports whether all others were dropped to
// make room.
func keep[K comparable, V any](into map[K]V, most int, key K, v V) (dropped bool) {
	if _, ok := into[key]; !ok && len(into) >= most {
		clear(into)
		dropped = true
	}
	into[key] = v
	return dropped
}

// An Aggregation is what --share-pulls and --aggregate host would save of a job with all keys at
// home. The values of a pull go to a host once, until one of their keys is pushed again. Values that
// a host's workers push for the same key, one from each worker and within the wait, go as one.
type Aggregation struct {
	// The most workers on one machine.
	Each        int     `json:"workers_of_a_machine"`
	WaitSeconds float64 `json:"wait_seconds"`
	// Answers from other machines.
	Pulls uint64 `json:"pulls"`
	// Those of them whose values the machine has already.
	Shared uint64 `json:"shared"`
	// Those of them that go by key, since the machine has an eighth of the values or more.
	ByKey uint64 `json:"by_key"`
	// Pushes to other machines.
	Pushes uint64 `json:"pushes"`
	// Those of them whose values another worker's push carries.
	Carried uint64 `json:"carried"`
	// Those of them of whose values others carry a part.
	Partial uint64 `json:"partial"`
	// Forms have the bytes of keys and values: servers (the job as it is), shared_pulls,
	// summed_pushes, and host_sums (both).
	Forms []AggregationForm `json:"forms"`
}

// An AggregationForm is what crosses the machines' links in one form, over the whole recording.
type AggregationForm struct {
	Form    string  `json:"form"`
	Busiest float64 `json:"busiest"` // both ends of what crosses count
	Machine int     `json:"machine"` // the busiest, from 0
	Total   float64 `json:"total"`   // counted once
}

// An aggregating computes an Aggregation. It sees all uses in the order of time.
//
// Whether a machine has a pull's values is decided by numbers: pushes are counted, pushed has the
// number of each key's last push, and has the newest of these numbers at the time when a list was
// last sent to a machine. If it is still the newest, no key of the list was pushed since. got has the
// same for each key.
type aggregating struct {
	machines *machines
	// By machine, how many run there.
	workers []int
	// By worker, a bit of its own among those on its machine.
	bits     []uint64
	keyBytes int
	wait     time.Duration
	seed     maphash.Seed
	scratch  []byte

	// The bound on the entries of each of the maps below.
	most int
	// The number of pushes so far.
	pushes uint64
	// By key, the number of its last push.
	pushed map[uint64]uint64
	// forgotten is the number of the last push of a key that pushed may have forgotten. A key that
	// is missing counts as pushed then.
	forgotten uint64
	has       map[listOf]uint64 // what a machine was sent: the number of the last push that is in it
	got       map[keyOf]uint64  // likewise, by key
	// What the workers of a machine push for a key.
	sums map[keyOf]keySum
	// The round that each worker is in at each server, and the highest of a machine's workers. A push
	// is the next one, or that of the others if these are ahead.
	rounds, newest map[[2]int]int
	// Lists that a worker has pushed before.
	known map[pushedBy]bool

	plain, sharing, summing []float64 // by machine: bytes as it is, and bytes saved
	out                     Aggregation
}

// A listOf is a list of keys, with lens if there are any, between a machine and a server.
type listOf struct {
	machine, server int
	list            uint64
}

// A pushedBy is a list of keys that a worker pushes to a server.
type pushedBy struct {
	worker, server int
	list           uint64
}

// A keyOf is a key that workers of a machine push to a server or, of a push whose values cannot be
// told apart by keys, its list.
type keyOf struct {
	machine, server int
	key             uint64
	isList          bool
}

// A keySum is what the workers of a machine push for a key. Workers are sets of bits.
type keySum struct {
	known uint64 // workers that have pushed the key
	in    uint64 // workers whose values are in the last sum
	began int64  // when it began, in nanoseconds since 1970
	bytes uint64 // of its values
	list  uint64 // of the push that began it
	round int    // of that push
}

// newAggregating returns an aggregating that has seen nothing. wait is how long a sum stays open.
func newAggregating(m *machines, keyBytes int, wait time.Duration) *aggregating {
	a := &aggregating{
		machines: m, workers: make([]int, m.count), keyBytes: keyBytes, wait: wait, seed: maphash.MakeSeed(), most: maxKept,
		pushed: map[uint64]uint64{}, has: map[listOf]uint64{}, got: map[keyOf]uint64{}, sums: map[keyOf]keySum{}, rounds: map[[2]int]int{}, newest: map[[2]int]int{}, known: map[pushedBy]bool{},
		plain: make([]float64, m.count), sharing: make([]float64, m.count), summing: make([]float64, m.count),
	}
	for _, machine := range m.worker {
		// Of more than 64 workers some share a bit, and less is predicted to be saved.
		a.bits = append(a.bits, 1<<(a.workers[machine]%64))
		a.workers[machine]++
	}
	a.out.Each, a.out.WaitSeconds = slices.Max(a.workers), wait.Seconds()
	return a
}

// take adds a use of a worker's at a server. values is the number of bytes of its values.
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

// pulled adds the answer to a pull from another machine. What the machine has is updated at the
// answer, not at the request: the answer has the values as of that moment.
func (a *aggregating) pulled(u *recording.Use, to listOf, at int) {
	a.out.Pulls++
	// A host with one worker has nobody to share with, and proxies leave small values alone.
	if u.Push || u.Bytes < leastShared || a.workers[to.machine] < 2 {
		return
	}
	// If none of the keys was pushed since the machine last got the list, it has the values.
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
	if saved := a.pulledByKey(u, to); leastPart*saved >= float64(u.Bytes) {
		a.out.ByKey++
		between(a.sharing, int32(to.machine), int32(at), saved)
	}
}

// pulledByKey returns how many bytes an answer takes less if the values that the machine has are left
// out of it: a bit for each key says which.
func (a *aggregating) pulledByKey(u *recording.Use, to listOf) (saved float64) {
	n := uint64(len(u.Keys))
	if n < 2 || u.Lens != nil || u.Bytes%n != 0 || u.Bytes/n > widestByKey {
		return 0
	}
	known := uint64(0)
	for _, key := range u.Keys {
		last, ok := a.pushed[key]
		if !ok {
			last = a.forgotten
		}
		at := keyOf{to.machine, to.server, key, false}
		if got, ok := a.got[at]; ok && got == last {
			known++
		} else {
			keep(a.got, a.most, at, last)
		}
	}
	return float64(known*(u.Bytes/n)) - float64((n+7)/8)
}

// sum adds a push to another machine: each of its values to an open sum of the same key that this
// worker is not in yet, or as the beginning of one.
func (a *aggregating) sum(u *recording.Use, to listOf, worker, at int) {
	a.out.Pushes++
	if u.Pull || u.Bytes < leastShared || u.Bytes > mostSummed || a.workers[to.machine] < 2 {
		return
	}
	keys, sizes := a.keysOf(u, to)
	by, bit := pushedBy{worker, to.server, to.list}, a.bits[worker]
	isKnown := a.known[by]
	keep(a.known, a.most, by, true)
	familiar := 0
	for _, k := range keys {
		if isKnown || a.sums[k].known&bit != 0 {
			familiar++
		}
	}
	// The first values of a key may be initial ones: they go as they are, and so does a push that has
	// hardly any others.
	takesPart := leastPart*familiar >= len(keys)
	carried, round := uint64(0), 0
	if takesPart {
		round = a.nextRound(worker, to)
	}
	for i, k := range keys {
		s := a.sums[k]
		switch {
		case !takesPart || !isKnown && s.known&bit == 0:
		// A worker that pushes the key again is in its next step, whose values must not be added to
		// those of this one. So is one that pushes another list in a later round: all that the sum has
		// waited for have come.
		case s.in == 0 || s.in&bit != 0 || s.bytes != sizes[i] || u.UnixNanos-s.began > int64(a.wait) || s.list != to.list && s.round != round:
			s.in, s.began, s.bytes, s.list, s.round = bit, u.UnixNanos, sizes[i], to.list, round
		default:
			s.in |= bit
			carried += sizes[i]
		}
		s.known |= bit
		keep(a.sums, a.most, k, s)
	}
	switch {
	case carried == u.Bytes:
		a.out.Carried++
	case leastPart*carried >= u.Bytes:
		a.out.Partial++
	default:
		return
	}
	// These values are added to those of another push of the host, and cross the link once.
	between(a.summing, int32(to.machine), int32(at), float64(carried))
}

// nextRound returns the round of a worker's push.
func (a *aggregating) nextRound(worker int, to listOf) int {
	mine, all := [2]int{worker, to.server}, [2]int{to.machine, to.server}
	a.rounds[mine] = max(a.rounds[mine]+1, a.newest[all])
	a.newest[all] = a.rounds[mine]
	return a.rounds[mine]
}

// keysOf returns the keys of a push and how many bytes of values each has. If that cannot be told
// the list stands for all.
func (a *aggregating) keysOf(u *recording.Use, to listOf) (keys []keyOf, sizes []uint64) {
	n, elements := uint64(len(u.Keys)), uint64(len(u.Keys))
	if u.Lens != nil {
		elements = 0
		for _, l := range u.Lens {
			elements += uint64(max(l, 0))
		}
	}
	if n == 0 || elements == 0 || u.Bytes%elements != 0 || u.Lens != nil && uint64(len(u.Lens)) != n {
		return []keyOf{{to.machine, to.server, to.list, true}}, []uint64{u.Bytes}
	}
	for i, key := range u.Keys {
		size := u.Bytes / elements
		if u.Lens != nil {
			size *= uint64(max(u.Lens[i], 0))
		}
		keys, sizes = append(keys, keyOf{to.machine, to.server, key, false}), append(sizes, size)
	}
	return keys, sizes
}

// list returns a hash of a use's keys, lens and size. A collision would make two lists count as
// one; at 64 bits that is negligible.
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

// result returns the outcome.
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

// aggregationTitles are the names of the forms in tables.
var aggregationTitles = map[string]string{
	"servers": "none", "shared_pulls": "--share-pulls", "summed_pushes": "--aggregate host", "host_sums": "both",
}

// Print writes a table of the forms.
func (a *Aggregation) Print(w io.Writer) error {
	if a.Each < 2 {
		_, err := fmt.Fprintln(w, "\naggregation: nothing to save, no machine has two workers")
		return err
	}
	fmt.Fprintf(w, "\naggregation with keys at home, up to %d workers a machine: values of %d of %d pulls are there already, and a part of %d, %d of %d pushes are carried by others within %v, and a part of %d\n\n",
		a.Each, a.Shared, a.Pulls, a.ByKey, a.Carried, a.Pushes, time.Duration(a.WaitSeconds*float64(time.Second)), a.Partial)
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
