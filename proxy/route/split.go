package route

import (
	"fmt"
	"math"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// split is a request whose parts went to several servers, or to another one than the worker chose.
//
// Its owners, and so the places among them, are fixed when it is sent; acked, answers, in and
// unseen are by place. answers is dropped when whole is made, which is the answer as delivered to
// the worker and is kept only for repetition (PS_RESEND). The slices of answers and whole refer to
// the messages of the servers, which the router owns.
type split struct {
	id      request
	own     int32            // timestamp of its parts; of a parted split the first of several
	joint   bool             // other requests share its parts: see Joint
	parted  bool             // owners are shares, see parts.go
	mixed   bool             // it pulls keys that do not ascend, from several owners
	order   []int32          // of a mixed one, the owner of each key; nil where it was lost with a router before this one
	owners  []int32          // ascending: ranks, or shares
	acked   set              // places of owners that have acknowledged their part (PS_RESEND)
	answers []pslite.Message // of each owner
	in      set              // places of owners whose answer has come
	unseen  set              // of in: answers without values that came to a router before this one
	whole   [][]byte         // the merged answer, once delivered
}

// ranks returns the distinct owners, ascending. Neighbouring keys mostly share an owner, so it
// searches only where the owner changes.
func ranks(owners []int32) (all []int32) {
	last, seen := int32(-1), uint64(0) // seen: ranks below 64 that are in all
	for _, o := range owners {
		if o == last {
			continue
		}
		last = o
		if uint32(o) < 64 {
			if seen>>o&1 != 0 {
				continue
			}
			seen |= 1 << o
		}
		if i, found := slices.BinarySearch(all, o); !found {
			all = slices.Insert(all, i, o)
		}
	}
	return all
}

func newSplit(id request, own int32, owners []int32) *split {
	return &split{id: id, own: own, owners: owners, answers: make([]pslite.Message, len(owners))}
}

// frames returns the frames of message m with another meta and other data. The data frames are
// shared, not copied.
func frames(m *pslite.Message, meta *pslite.Meta, d pslite.Dialect, data [][]byte) [][]byte {
	var all [][]byte
	if m.Identity != nil {
		all = append(all, m.Identity)
	}
	return append(append(all, meta.Append(nil, d)), data...)
}

// divisible returns an error that says why a request cannot be split, and nil where it can. Keys
// and values have to be there, and values have to divide by keys, so that it is known whose they
// are.
func divisible(m *pslite.Message) error {
	n := m.Keys().Len()
	switch {
	case m.Identity != nil:
		return fmt.Errorf("route: a request with an identity frame cannot be split")
	case len(m.Data) < 2:
		return fmt.Errorf("route: a request with %d data frames cannot be split: want keys and values", len(m.Data))
	case m.Lens() == nil && len(m.Data[1])%n != 0:
		return fmt.Errorf("route: %d bytes of values do not divide by %d keys", len(m.Data[1]), n)
	}
	for i := range m.Lens().Len() {
		if m.Lens().At(i) < 0 {
			return fmt.Errorf("route: %d values of key %d", m.Lens().At(i), m.Keys().At(i))
		}
	}
	return nil
}

// slice is one request while it is being split: alone, or with others of its timestamp.
type slice struct {
	split   *split
	message *pslite.Message
	owners  []int32 // of its keys, in their order
}

// part is the data of the message to one owner: keys, values and, where the request has them,
// lengths.
type part [3][]byte

// sendParts sends to each owner its part of all slices, which are in the order of their servers, so
// that the keys of a joint part ascend. A single slice may be a repetition; then owners that have
// acknowledged their part are left out. The meta is the first slice's with the timestamp replaced:
// slices differ in nothing else (alike).
func (r *Router) sendParts(w *worker, all ...slice) error {
	first := all[0]
	if first.split.parted {
		return r.sendShares(w, first)
	}
	owners := first.split.owners
	if len(all) == 1 && len(owners) == 1 {
		r.sendWhole(w, first)
		return nil
	}
	for _, s := range all[1:] {
		owners = ranks(slices.Concat(owners, s.split.owners))
	}
	parts := make([]part, len(owners))
	for _, s := range all {
		runs, err := s.cut(parts, owners, r.owners.runs)
		if r.owners.keepRuns(runs); err != nil {
			return err
		}
	}
	for i, owner := range owners {
		if len(all) == 1 && first.split.acked.has(i) {
			continue
		}
		data := parts[i][:2:2]
		if first.message.Lens() != nil {
			data = parts[i][:3]
		}
		meta := first.message.Meta
		meta.Timestamp = first.split.own
		resize(&meta, first.message.Data, data)
		r.counts.Parts++
		r.send(w, owner, frames(first.message, &meta, w.speaks, data))
	}
	return nil
}

// sendWhole sends a request all of whose keys have one owner: nothing of it needs to be cut.
func (r *Router) sendWhole(w *worker, s slice) {
	if s.split.acked.has(0) {
		return
	}
	meta := s.message.Meta
	meta.Timestamp = s.split.own
	r.counts.Parts++
	r.send(w, s.split.owners[0], frames(s.message, &meta, w.speaks, s.message.Data))
}

// cut appends what each of the owners gets of a slice to their parts. Neighbours with one owner are
// copied together: where data and keys were placed together, most of a worker's keys have the same
// one. Room is made first, so that the copying stores no pointers, which would cost more than the
// keys do while the collector runs. It returns the memory of runs, for the next call.
func (s *slice) cut(parts []part, among []int32, memory []run) ([]run, error) {
	runs, err := s.runs(among, memory)
	if err != nil {
		return runs, err
	}
	m := s.message
	lens := m.Lens()
	ends := make([][3]int, len(among)) // of keys, values and lengths, in bytes
	first := 0
	for _, r := range runs {
		ends[r.to][0] += 8 * (r.last - first)
		ends[r.to][1] += r.values
		first = r.last
	}
	for i := range parts {
		n := ends[i]
		if lens != nil {
			n[2] = n[0] / 2
		}
		for j := range n {
			ends[i][j] = len(parts[i][j])
			parts[i][j] = slices.Grow(parts[i][j], n[j])[:ends[i][j]+n[j]]
		}
	}
	keys, values := m.Data[0], m.Data[1]
	first = 0
	for _, r := range runs {
		p, end := &parts[r.to], &ends[r.to]
		end[0] += move(p[0][end[0]:], keys[8*first:8*r.last])
		end[1] += move(p[1][end[1]:], values[:r.values])
		if lens != nil {
			end[2] += copy(p[2][end[2]:], lens[4*first:4*r.last])
		}
		values, first = values[r.values:], r.last
	}
	return runs, nil
}

// move is copy for mostly a few bytes: those of one key, or of its value.
func move(dst, src []byte) int {
	switch len(src) {
	case 4:
		*(*[4]byte)(dst) = [4]byte(src)
		return 4
	case 8:
		*(*[8]byte)(dst) = [8]byte(src)
		return 8
	}
	return copy(dst, src)
}

// sizes returns a function that says how many bytes of values the keys from first to
// before last have.
func (s *slice) sizes() func(first, last int) int {
	m := s.message
	lens, size := m.Lens(), m.Values().Type.Size()
	switch {
	case len(m.Data[1]) == 0: // a pull's lengths are those that it wants
		return func(int, int) int { return 0 }
	case lens == nil:
		each := len(m.Data[1]) / len(s.owners)
		return func(first, last int) int { return each * (last - first) }
	}
	return func(first, last int) (n int) {
		for i := first; i < last; i++ {
			n += int(lens.At(i)) * size
		}
		return n
	}
}

// run is a run of neighbouring keys with one owner: those before last that are in no run before it.
type run struct {
	to     int // place of the owner
	last   int // index of a key
	values int // bytes
}

// runs returns the runs of a slice, with the places of their owners in among, in memory's place.
func (s *slice) runs(among []int32, memory []run) ([]run, error) {
	all, sizes := memory[:0], s.sizes()
	owner, to := int32(-1), 0
	for first := 0; first < len(s.owners); {
		last := first + 1
		if s.owners[first] != owner {
			owner = s.owners[first]
			// A repeated request is cut by the table of now. It must have the owners of the first
			// time, or a part that was not there would be answered by nobody who is waited for.
			if s.split.place(s.split.own, owner) < 0 {
				return all, fmt.Errorf("route: key %d of an in-flight request has moved to server %d", s.message.Keys().At(first), owner)
			}
			to, _ = slices.BinarySearch(among, owner)
		}
		for last < len(s.owners) && s.owners[last] == owner {
			last++
		}
		all = append(all, run{to, last, sizes(first, last)})
		first = last
	}
	return all, nil
}

// resize sets the data size of a meta whose data changed from before to after. Senders that leave
// the size at something else keep it.
func resize(m *pslite.Meta, before, after [][]byte) {
	if m.DataSize == int32(total(before)) {
		m.DataSize = int32(total(after))
	}
}

func total(frames [][]byte) (n int) {
	for _, f := range frames {
		n += len(f)
	}
	return n
}

// Answer is shown the meta of a server's answer to a worker. It returns true where the message
// passes as it is. Otherwise it answers a part or an op, and the caller must give the whole message
// to [Router.TakeAnswer]. It does not keep m.
func (r *Router) Answer(server, workerID int32, m *pslite.Meta) (passes bool) {
	if m.Timestamp >= FirstOwn && m.Timestamp <= LastOwn {
		return false
	}
	w := r.workers[workerID]
	w.answered = true
	id := r.request(server, m)
	if e, ok := w.open[id]; ok && e.split == nil {
		r.mark(w, id, e, Answered)
	}
	return true
}

// TakeAnswer handles a whole answer for which [Router.Answer] returned false. The router keeps the
// frames, which must not change. An error means that the job cannot go on: an answer does not fit
// its request, and the worker would wait forever.
func (r *Router) TakeAnswer(server, workerID int32, m *pslite.Message, d pslite.Dialect) error {
	w := r.workers[workerID]
	w.speaks, w.answered = d, true
	own := m.Meta.Timestamp
	if l := w.ops[own]; l != nil {
		return r.takeOwn(w, l, m)
	}
	asked := false
	for _, s := range slices.Clone(w.splits[own]) {
		place := s.place(own, server)
		if place < 0 {
			continue
		}
		asked = true
		part := *m
		if s.joint {
			var err error
			if part, err = portion(m, s.id.server, r.table.servers); err != nil {
				return err
			}
		}
		if err := r.takePart(w, s, place, &part, d); err != nil {
			return err
		}
	}
	// The part was answered before, or its move was given up. A server with PS_RESEND repeats the
	// answer until it is acknowledged.
	if !asked && r.resend {
		r.acceptAnswer(w, server, m.Meta.AppID, own)
	}
	return nil
}

// takePart handles the answer to a part of a request, from the owner in place i. With the last one,
// the whole answer is delivered.
func (r *Router) takePart(w *worker, s *split, i int, m *pslite.Message, d pslite.Dialect) error {
	if s.whole != nil { // the worker did not acknowledge it in time
		r.deliver(w, s.id.server, s.whole)
		return nil
	}
	if s.in.has(i) {
		return nil
	}
	s.in.addNumber(i)
	s.answers[i] = *m
	s.answers[i].Meta = m.Meta.Clone()
	if s.in.count() < len(s.owners) {
		// Without PS_RESEND nobody repeats an answer, so it has to outlive a kill. One without data
		// needs only a bit, which is much cheaper, as long as there are bits for all owners.
		switch { // with PS_RESEND it comes again
		case r.resend:
		case len(m.Data) == 0 && len(s.owners) <= marked:
			w.ledger.In(s.id.public(), uint32(s.in.low))
		default:
			w.ledger.Keep(Message{ID: s.id.public(), Place: int32(i), Dialect: d, Frames: frames(m, &m.Meta, d, m.Data)})
		}
		return nil
	}
	assemble := s.assemble
	if s.parted {
		assemble = func(d pslite.Dialect) ([][]byte, error) { return s.assembleShares(d, r.table.servers) }
	}
	whole, err := assemble(d)
	if err != nil {
		return err
	}
	s.whole, s.answers = whole, nil
	r.deliver(w, s.id.server, whole)
	if !r.resend {
		r.mark(w, s.id, w.open[s.id], Answered)
	}
	return nil
}

// assemble merges the answers to the parts, which must agree in their number of frames and, without
// lengths, in the size of a value. A single one needs no merging. The meta is that of an answer that this router has seen, with
// the request's timestamp.
func (s *split) assemble(d pslite.Dialect) ([][]byte, error) {
	first := &s.answers[s.unseen.missing()]
	meta := first.Meta
	meta.Timestamp = s.id.timestamp
	if len(first.Data) == 0 {
		return frames(first, &meta, d, nil), nil
	}
	if len(s.answers) == 1 {
		return frames(first, &meta, d, first.Data), nil
	}
	n := 0
	for i := range s.answers {
		a := &s.answers[i]
		switch {
		case len(a.Data) != len(first.Data):
			return nil, fmt.Errorf("route: server %d answers with %d data frames, server %d with %d", s.owners[i], len(a.Data), s.owners[0], len(first.Data))
		case a.Keys().Len() == 0 || a.Lens() == nil && len(a.Data[1])%a.Keys().Len() != 0:
			return nil, fmt.Errorf("route: server %d answers with %d keys and %d bytes of values", s.owners[i], a.Keys().Len(), len(a.Data[1]))
		case a.Lens() == nil && a.Keys().Len()+first.Keys().Len() > 2 && len(a.Data[1])/a.Keys().Len() != len(first.Data[1])/first.Keys().Len():
			// Values of one key each have any width. Of several keys nobody could tell whose values they are.
			return nil, fmt.Errorf("route: server %d answers with %d bytes a key, server %d with %d", s.owners[i],
				len(a.Data[1])/a.Keys().Len(), s.owners[0], len(first.Data[1])/first.Keys().Len())
		}
		n += a.Keys().Len()
	}
	if s.mixed && n != len(s.order) {
		return nil, fmt.Errorf("route: %d keys are in the answers to request %d, and the order of %d is known: they do not ascend, and a proxy that is killed loses it", n, s.id.timestamp, len(s.order))
	}
	data, err := s.merge(n)
	if err != nil {
		return nil, err
	}
	resize(&meta, first.Data, data)
	return frames(first, &meta, d, data), nil
}

// feed is the rest of one answer during a merge.
type feed struct {
	keys   pslite.Keys
	values []byte
	lens   pslite.Lens
	unit   int    // bytes of one value where keys have lengths; else bytes per key
	head   uint64 // keys.At(at), the next one
	at     int
	from   int // of values, those of the next key
}

// nextRun returns the end of the run of keys below limit, at least one, and of their values.
func (f *feed) nextRun(limit uint64) (at, from int) {
	at = f.at + 1
	for at < f.keys.Len() && f.keys.At(at) < limit {
		at++
	}
	if f.lens == nil {
		return at, f.from + f.unit*(at-f.at)
	}
	from = f.from
	for i := f.at; i < at; i++ {
		from += f.unit * int(f.lens.At(i))
	}
	return at, from
}

// merge merges the parts, n keys in all: sorted ones by runs of keys that one of them has between
// two keys of others, and those of a mixed request in its order.
func (s *split) merge(n int) ([][]byte, error) {
	size := 0
	feeds := make([]feed, len(s.answers))
	for i := range s.answers {
		a := &s.answers[i]
		f := feed{keys: a.Keys(), values: a.Data[1], lens: a.Lens(), unit: a.Values().Type.Size()}
		if f.lens == nil {
			f.unit = len(f.values) / f.keys.Len()
		}
		f.head = f.keys.At(0)
		feeds[i] = f
		size += len(f.values)
	}
	keys, values := make([]byte, 0, 8*n), make([]byte, 0, size)
	var lens []byte
	take := func(f *feed, at, from int) {
		keys = append(keys, f.keys[8*f.at:8*at]...)
		values = append(values, f.values[f.from:from]...)
		if f.lens != nil {
			lens = append(lens, f.lens[4*f.at:4*at]...)
		}
		f.at, f.from = at, from
	}
	for _, owner := range s.order {
		f := &feeds[s.place(s.own, owner)]
		if f.at == f.keys.Len() {
			return nil, fmt.Errorf("route: server %d answers with too few keys", owner)
		}
		at, from := f.nextRun(0)
		take(f, at, from)
	}
	for len(feeds) > 0 && s.order == nil {
		least, limit := 0, uint64(math.MaxUint64) // limit: the least head of the others
		for i := 1; i < len(feeds); i++ {
			if head := feeds[i].head; head < feeds[least].head {
				limit, least = feeds[least].head, i
			} else {
				limit = min(limit, head)
			}
		}
		f := &feeds[least]
		at, from := f.nextRun(limit)
		if take(f, at, from); at == f.keys.Len() {
			feeds = slices.Delete(feeds, least, least+1)
			continue
		}
		f.head = f.keys.At(at)
	}
	data := make([][]byte, len(s.answers[0].Data))
	if data[0], data[1] = keys, values; len(data) > 2 {
		data[2] = lens
	}
	return data, nil
}
