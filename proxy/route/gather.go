package route

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// PS-lite's workers cut a request at the servers' home ranges and send each server its slice, all
// under one timestamp. Where keys are displaced, each of S slices has parts for up to S owners, so
// S requests become S x S messages. Therefore the slices of one timestamp are gathered before they
// are split, and each owner gets one message with its keys of all slices: a joint part. Its answer
// is cut at the home ranges again ([Router.TakeAnswer]), and each slice gets its own.
//
// A message does not say how many slices its timestamp has; the timestamps before it show that.
// Missing slices are waited for until the second call of [Router.EndGathers], and after a wait in
// vain less often.
//
// With PS_RESEND nothing is gathered: a worker repeats slices and not joint parts, and servers
// recognize a repetition by its signature and not by its keys.

// sequence identifies the requests of a worker among which slices are counted: those of one kind,
// app and customer.
type sequence struct {
	app, customer int32
	push, pull    bool
}

// gathering identifies a timestamp of a sequence whose slices are gathered.
type gathering struct {
	sequence
	timestamp int32
}

// gather is the state of a gathering: some slices wait in their queues for the missing ones.
type gather struct {
	missing set  // servers whose slices have not come
	old     bool // it was there at the last EndGathers
}

// slicing is what is known about how requests of a sequence are sliced.
//
// Waiting costs latency where slices do not come, so each gathering in vain doubles the number of
// timestamps that are not gathered, up to 1<<maxPenalty, and a successful one resets it.
type slicing struct {
	recent  [4]asked // the latest timestamps and their servers, a ring
	next    int
	penalty uint // the next 1<<penalty timestamps are not gathered, after one in vain
	skip    int  // timestamps of the current penalty that are left
}

// asked is the set of servers to which requests with a timestamp went.
type asked struct {
	timestamp int32
	servers   set
}

// maxGathers bounds the gatherings of a worker at a time, and maxSequences the sequences known of
// one. Slices beyond are sent alone, which is correct and only costs messages.
const maxGathers, maxSequences = 16, 64

// maxPenalty bounds slicing.penalty.
const maxPenalty = 6

// Gather enables gathering, for good. The caller then calls [Router.EndGathers] about every
// millisecond while [Router.Gathering] reports true.
func (r *Router) Gather() { r.gather = true }

// Gathering reports whether any slices wait for others.
func (r *Router) Gathering() bool {
	for _, w := range r.workers {
		if len(w.gathers) > 0 {
			return true
		}
	}
	return false
}

// EndGathers ends gatherings that were already there at the last call, and sends their slices.
// Slices thus wait for between one and two intervals of the caller's.
func (r *Router) EndGathers() {
	for _, id := range r.Workers() {
		w := r.workers[id]
		ended := false
		for at, g := range w.gathers {
			if !g.old {
				g.old = true
				continue
			}
			delete(w.gathers, at)
			s := w.slicings[at.sequence]
			s.penalty = min(s.penalty+1, maxPenalty)
			s.skip = 1 << s.penalty
			r.counts.Ungathered++
			ended = true
		}
		if ended {
			r.flushWorker(w)
		}
	}
}

// noteSlice notes to which server a request goes, when its beginning is seen. It is called for
// requests that pass untouched, too: they show how many slices a timestamp has.
func (r *Router) noteSlice(w *worker, server int32, m *pslite.Meta) {
	if !r.gathers() || r.table.Empty() {
		return
	}
	at := gathering{sequence{m.AppID, m.CustomerID, m.Push, m.Pull}, m.Timestamp}
	s := w.slicings[at.sequence]
	if s == nil {
		if len(w.slicings) >= maxSequences {
			return
		}
		s = &slicing{}
		for i := range s.recent {
			s.recent[i].timestamp = pslite.Empty
		}
		w.slicings[at.sequence] = s
	}
	i := slices.IndexFunc(s.recent[:], func(a asked) bool { return a.timestamp == m.Timestamp })
	if i < 0 {
		i = s.next
		s.next = (s.next + 1) % len(s.recent)
		s.recent[i].timestamp = m.Timestamp
		s.recent[i].servers.clear()
		s.skip = max(0, s.skip-1)
	}
	s.recent[i].servers.addNumber(int(server))
}

// expected returns the servers whose slices of a timestamp are still to come: those that had one of
// all other recent timestamps, except one at most. With sparse requests a timestamp may have no key
// of some server.
func (s *slicing) expected(timestamp int32) (missing set) {
	var once, twice set // without a slice once, or more often
	for i := range s.recent {
		for rank := range s.recent[i].servers.all {
			missing.addNumber(rank)
		}
	}
	for i := range s.recent {
		t := &s.recent[i]
		if t.timestamp == timestamp {
			for rank := range t.servers.all {
				twice.addNumber(rank) // its slice has come
			}
			continue
		}
		for rank := range missing.all {
			switch {
			case t.servers.has(rank):
			case once.has(rank):
				twice.addNumber(rank)
			default:
				once.addNumber(rank)
			}
		}
	}
	for rank := range twice.all {
		missing.remove(rank)
	}
	return missing
}

// gathers reports whether slices are gathered in this job.
func (r *Router) gathers() bool { return r.gather && !r.resend }

// waitsForSlices reports whether a request that is about to be split has to wait for other slices
// of its timestamp. If so it joins their gathering or starts one.
//
// Only requests that are all at home with their server are gathered, since a joint answer is
// divided by home; see portion.
func (r *Router) waitsForSlices(w *worker, id request, m *pslite.Message) bool {
	if !r.gathers() || !w.answered || divisible(m) != nil || !m.Keys().Ordered() || !atHome(m.Keys(), id.server, r.table.servers) || !w.joins(&m.Meta) || r.parted(&m.Meta, m.Keys()) {
		return false
	}
	at := gathering{sequence{m.Meta.AppID, m.Meta.CustomerID, m.Meta.Push, m.Meta.Pull}, m.Meta.Timestamp}
	if w.gathers[at] != nil {
		return true
	}
	s := w.slicings[at.sequence]
	if s == nil || s.skip > 0 || len(w.gathers) >= maxGathers {
		return false
	}
	missing := s.expected(at.timestamp)
	if missing.empty() {
		return false
	}
	w.gathers[at] = &gather{missing: missing}
	return true
}

// endGather notes that a server's slice has come, and reports whether it was the last one missing.
// The caller then flushes the worker's queues, after it has queued this slice.
func (r *Router) endGather(w *worker, server int32, m *pslite.Meta) bool {
	at := gathering{sequence{m.AppID, m.CustomerID, m.Push, m.Pull}, m.Timestamp}
	g := w.gathers[at]
	if g == nil {
		return false
	}
	g.missing.remove(int(server))
	if !g.missing.empty() {
		return false
	}
	delete(w.gathers, at)
	w.slicings[at.sequence].penalty = 0
	return true
}

// joins reports whether the keys of several slices can go in one message. Where keys can have
// different numbers of values, the answer to a pull need not have lengths, and nobody could tell
// whose values they are.
func (w *worker) joins(m *pslite.Meta) bool {
	return m.Push && !m.Pull || !w.lens && w.pushed
}

// gathered reports whether a waiting request is part of a gathering that has not ended.
func (w *worker) gathered(q *waiting) bool {
	m := &q.message.Meta
	return len(w.gathers) > 0 && w.gathers[gathering{sequence{m.AppID, m.CustomerID, m.Push, m.Pull}, m.Timestamp}] != nil
}

// takeSlices removes the first request from a server's queue, together with those at the heads of
// the worker's other queues that are slices of the same request and hold nothing up. They are
// returned in the order of their servers, which is that of their keys.
func (r *Router) takeSlices(w *worker, server int32) []waiting {
	all := []waiting{w.shift(server)}
	first := &all[0]
	if !r.gathers() || !w.answered || len(w.queues) == 0 || !r.joinable(w, first) {
		return all
	}
	for _, other := range slices.Sorted(maps.Keys(w.queues)) {
		q := w.queues[other]
		if other != server && len(q) > 0 && !r.holdsAny(q[0].message.Keys().Sorted()) && r.joinable(w, &q[0]) && alike(first, &q[0]) {
			all = append(all, w.shift(other))
		}
	}
	slices.SortFunc(all, func(a, b waiting) int { return int(a.id.server - b.id.server) })
	return all
}

// joinable reports whether a request can be one of several in joint parts.
func (r *Router) joinable(w *worker, q *waiting) bool {
	m := &q.message
	return divisible(m) == nil && m.Keys().Ordered() && atHome(m.Keys(), q.id.server, r.table.servers) && w.joins(&m.Meta) && !r.parted(&m.Meta, m.Keys())
}

// shift removes and returns the first request of a queue, which must not be empty.
func (w *worker) shift(server int32) waiting {
	q := w.queues[server]
	if w.queues[server] = q[1:]; len(q) == 1 {
		delete(w.queues, server)
	}
	return q[0]
}

// atHome reports whether all of the ascending keys, of which there is at least one, are at home
// with a server.
func atHome(keys pslite.Keys, server int32, servers int) bool {
	n := keys.Len()
	home := plan.HomeRange(server, servers)
	return n > 0 && keys.At(0) >= home.First && keys.At(n-1) <= home.Last
}

// alike reports whether two requests are slices of one: they differ in nothing but server, keys and
// values, and their values have the same size per key. Metas are compared encoded, so that no field
// is forgotten.
func alike(a, b *waiting) bool {
	x, y := &a.message, &b.message
	if a.dialect != b.dialect || len(x.Data) != len(y.Data) || x.Meta.Timestamp != y.Meta.Timestamp {
		return false
	}
	if x.Lens() == nil && len(x.Data[1])/x.Keys().Len() != len(y.Data[1])/y.Keys().Len() {
		return false
	}
	if (x.Meta.DataSize == int32(total(x.Data))) != (y.Meta.DataSize == int32(total(y.Data))) {
		return false
	}
	m, n := x.Meta, y.Meta
	m.DataSize, n.DataSize = 0, 0
	return bytes.Equal(m.Append(nil, a.dialect), n.Append(nil, b.dialect))
}

// portion returns the part of a joint part's answer that belongs to the slice of a server: the keys
// that are at home there. The result shares m's memory. The bounds are checked because lengths come
// from the server.
func portion(m *pslite.Message, server int32, servers int) (pslite.Message, error) {
	if len(m.Data) < 2 {
		return *m, nil
	}
	keys, home := m.Keys(), plan.HomeRange(server, servers)
	n := keys.Len()
	from := sort.Search(n, func(i int) bool { return keys.At(i) >= home.First })
	to := from + sort.Search(n-from, func(i int) bool { return keys.At(from+i) > home.Last })
	lens, values := m.Lens(), m.Data[1]
	var first, last int // of the values' bytes
	switch {
	case n == 0 || lens == nil && len(values)%n != 0 || lens != nil && lens.Len() != n:
		return pslite.Message{}, fmt.Errorf("route: a server answers with %d keys, %d lengths and %d bytes of values", n, lens.Len(), len(values))
	case lens == nil:
		first, last = from*(len(values)/n), to*(len(values)/n)
	default:
		size := m.Values().Type.Size()
		for i := range to {
			if last += int(lens.At(i)) * size; i < from {
				first = last
			}
		}
	}
	if from == to || first < 0 || last < first || last > len(values) {
		return pslite.Message{}, fmt.Errorf("route: a server's answer to a joint part has %d keys of server %d, and bytes %d to %d of %d are theirs", to-from, server, first, last, len(values))
	}
	p := pslite.Message{Meta: m.Meta, Identity: m.Identity, Data: slices.Clone(m.Data)}
	p.Data[0], p.Data[1] = m.Data[0][8*from:8*to], values[first:last]
	if lens != nil {
		p.Data[2] = lens[4*from : 4*to]
	}
	resize(&p.Meta, m.Data, p.Data)
	return p, nil
}
