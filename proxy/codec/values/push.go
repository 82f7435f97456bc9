package values

import (
	"encoding/binary"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/threshold"
	"github.com/psidecar/psidecar/proxy/relay"
)

// pushing is a Sender's state for pushes. Only seed lives longer than a message.
type pushing struct {
	work   threshold.Workspace
	vector sparse.Vector
	at     []uint32
	// Of pieces some of whose keys may wait: the vector, positions and gradient of
	// these.
	part         sparse.Vector
	some, chosen []uint32
	gradient     []byte
	seed         uint64    // of the last rounding; another one for each piece
	initials     *initials // of the push's app
	apart        bool      // nothing that waits belongs to the push's command
	whole        int32     // timestamp of the worker's push, of which the message may be a part
	split        bool      // the message is a part
}

// stream returns the stream of a message's customer, or nil and the reason why there is
// none. Without make it is only looked for. The first use of a stream on this link
// joins it, and takes over what a proxy before this one has left for it: the worker may
// have reconnected because that proxy was killed.
func (s *Sender) stream(m *pslite.Message, make bool) (*stream, Reason) {
	return s.streamOf([2]int32{m.Meta.AppID, m.Meta.CustomerID}, make)
}

// streamOf is stream for an app and customer.
func (s *Sender) streamOf(id [2]int32, make bool) (*stream, Reason) {
	if st := s.streams[id]; st != nil {
		return st, ""
	}
	if !s.known {
		return nil, ReasonIdentity
	}
	st := s.codec.join(owner{s.link.Origin, s.node, s.link.Destination, id[0], id[1]}, make)
	if st == nil {
		return nil, ReasonStreams
	}
	s.streams[id], s.fresh[st] = st, true
	st.mu.Lock()
	st.pairs.clear() // answers to pulls on another connection may not have arrived
	st.mu.Unlock()
	if _, err := s.codec.takeOver(st.owner.fileName()); err != nil {
		s.codec.log.Error("thresholded pushes", "error", err)
	}
	return st, ""
}

// appendPush appends the section of a push whose layout was read. With coded false
// nothing was appended, and the values go as they now stand in the message.
func (s *Sender) appendPush(head []byte, shown *relay.Message, m *pslite.Message) (all []byte, coded bool) {
	// Without anything to remember no stream is needed, and no lock.
	if !s.layout.any((*Rule).keeps) && !s.owes(m) {
		return s.appendPieces(head, nil, m)
	}
	st, why := s.stream(m, true)
	if st == nil {
		s.codec.counts.why(why)
		s.noteWhole(why)
		return s.appendPieces(head, nil, m)
	}
	s.pushing.whole = s.whole(m.Meta.Timestamp)
	s.pushing.split = s.pushing.whole != m.Meta.Timestamp
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.guarded(func() { all, coded = s.appendKept(head, st, shown, m) }) {
		return head, false
	}
	return all, coded
}

// appendKept is appendPush for a push with a stream, which holds its residuals. The
// caller holds st.mu.
//
// The order matters: a repetition is recognized before anything changes, everything
// that changes is saved before, and the transaction is committed before the section
// leaves, see shelf.go.
func (s *Sender) appendKept(head []byte, st *stream, shown *relay.Message, m *pslite.Message) (all []byte, coded bool) {
	st.sender = s
	e, sum := exchangeOf(&m.Meta), st.repeats.sumOf(shown.Frames)
	// Only a connection's first request may come from a new process.
	fresh := s.fresh[st]
	delete(s.fresh, st)
	switch v, before := st.repeats.judge(e, sum, fresh); v {
	case isRepeat:
		st.counts.why(ReasonRepeat)
		return append(head, before.section...), len(before.section) > 0
	// The residuals are another process's: they must not reach the server in the new
	// one's name.
	case isOther:
		st.restart(ReasonRestarted)
	}
	if s.pushing.apart = typed(m) && !st.commands.remembers(m.Meta.Head); !s.pushing.apart {
		st.learn(m, s.dialect)
	}
	start := len(head)
	head, coded = s.appendPieces(head, st, m)
	if !st.repeats.remember(e, sum, head[start:], st) {
		st.counts.why(ReasonForgotten)
	}
	st.commit() // before anything of it leaves
	return head, coded
}

// appendPieces appends the pieces of a push. st is the stream, or nil if nothing may
// wait.
func (s *Sender) appendPieces(head []byte, st *stream, m *pslite.Message) (all []byte, coded bool) {
	start := len(head)
	vals := m.Values().Bytes
	head = binary.AppendUvarint(head, uint64(len(vals)))
	if s.pushing.initials = s.initialsOf(m.Meta.AppID); s.pushing.initials != nil {
		s.pushing.initials.beginPush(m)
	}
	// The pairing is advanced by each push, whatever becomes of it.
	if s.active.uses = nil; st != nil && s.layout.any((*Rule).activates) {
		s.active.uses = st.pairs.push(m.Meta.Timestamp, m.Keys())
	}
	for i := 0; i < len(s.layout.pieces); {
		p, pieces := &s.layout.pieces[i], 1
		// Several keys go as one piece only if none of them has a residual of its own.
		if s.active.uses != nil && len(st.dense) == 0 {
			p, pieces = s.group(i)
		}
		i += pieces
		before := len(head)
		var form, sent int
		if head, form, sent = s.appendPushed(head, st, p, m.Keys(), vals[p.from:p.to]); form == formPlain {
			head = appendPlain(head, vals[p.from:p.to])
		} else {
			coded = true
		}
		s.codec.counts.coded(form, p.values(), sent, p.to-p.from, len(head)-before)
	}
	if !coded {
		return head[:start], false
	}
	return head, true
}

// noRule is what holds where no rule does.
var noRule = new(Rule)

// rule returns what holds for the piece.
func (p *piece) rule() *Rule {
	if r := p.span.rule; r != nil && p.values() >= r.LeastValues*p.keys {
		return r
	}
	return noRule
}

// appendPushed appends a piece of a push, and returns in which form and how many of its
// values went. With formPlain it has appended nothing. values may be changed: what
// waited under earlier rules is added.
func (s *Sender) appendPushed(head []byte, st *stream, p *piece, keys pslite.Keys, values []byte) (all []byte, form, sent int) {
	r, n := p.rule(), p.values()
	if !p.known {
		if r.pushes() {
			s.codec.counts.why(ReasonType)
		}
		if r.Threshold > 0 {
			s.fit.note(ReasonType)
		}
		return head, formPlain, n
	}
	if (r.Threshold > 0 || r.Slim != nil) && s.assigns() {
		s.codec.counts.why(ReasonAssigned)
		if r.Threshold > 0 {
			s.fit.note(ReasonAssigned)
		}
		return head, formPlain, n
	}
	owed, initial := false, s.initial(p, r)
	if st != nil {
		owed = s.addOwed(st, p, keys, values)
		v, why := s.threshold(st, p, r, keys, values, initial)
		if why != "" {
			s.codec.counts.why(why)
		}
		if r.Threshold > 0 && (v != nil || why != "") {
			s.fit.note(why)
		}
		if v != nil {
			if initial { // those among the values must not be rounded
				r = noRule
			}
			return s.appendVector(head, v, r), formThreshold, v.Count()
		}
		if r.activates() && !owed {
			if v, form := s.activations(st, p, r, keys, values); v != nil {
				return s.appendVector(head, v, r), form, v.Count()
			}
		}
	}
	switch {
	case r.Threshold > 0: // it does not apply, and no lossy codec takes its place
	case initial:
		s.codec.counts.why(ReasonUnpulled)
	case r.Slim != nil:
		u, ok := pushed, false
		if st != nil {
			u = alone // state for repeats must not depend on rounds
		}
		if head, sent, ok = s.appendSlimPush(head, p, r, keys, values, u); ok {
			return head, formSlimPush, sent
		}
	case r.Quantize > 0:
		head = append(head, byte(partQuantized), byte(p.kind))
		head = binary.AppendUvarint(head, uint64(n))
		return s.quantize(head, r, p.kind, values), formQuantize, n
	}
	form, sent = formPlain, n
	if !initial {
		head, form, sent = s.appendWire(head, p, r, values)
	}
	if owed && form == formPlain { // the values are not those of the message any more
		return appendPlain(head, values), formThreshold, n
	}
	return head, form, sent
}

// assigns reports whether it is known that the server assigns pushes.
func (s *Sender) assigns() bool {
	return s.codec.assigns || s.link.Routes != nil && s.link.Routes.Assigns()
}

// threshold returns what of a piece goes under its rule's threshold; nil if there is
// none and nothing waits, or with the reason why the threshold does not apply. The
// vector is the Sender's, valid until the next piece.
//
// Under a rule without a threshold a layer that exists sends everything with the next
// push, which may itself be a gradual end (Rule.End), and is dropped when nothing is
// left.
//
// initial says that some of the values may be initial ones, which go whole.
func (s *Sender) threshold(st *stream, p *piece, r *Rule, keys pslite.Keys, values []byte, initial bool) (*sparse.Vector, Reason) {
	room, v := &s.pushing, &s.pushing.vector
	switch {
	case p.dense():
		if initial && r.Threshold > 0 {
			return nil, ReasonUnpulled
		}
		key := keys.At(p.first)
		if r.Threshold == 0 && st.dense[key] == nil {
			return nil, ""
		}
		l, why := st.denseOf(key, p, r)
		if why == "" && room.apart { // a step all the same
			l.SetAge(l.Age() + 1)
			noteAge(l.extent, l.Layer)
			why = ReasonCommands
		}
		if why != "" {
			return nil, why
		}
		st.save(l.Layer, l.extent, nil)
		last := r.Threshold == 0 && (r.End == 0 || l.Ended())
		l.meter.push(l.Layer, values)
		s.compress(l.Layer, func() error { return l.Compress(&room.work, v, values) })
		noteAge(l.extent, l.Layer)
		if last {
			st.dropDense(key)
		}
	case r.Threshold == 0 && st.narrow[p.layer()] == nil:
		return nil, ""
	default:
		l, why := st.narrowOf(p, r, pushPart{room.whole, keys.At(p.first), keys.Len() == 1 && !room.split})
		if why == "" && room.apart {
			why = ReasonCommands
		}
		if why == "" {
			room.at, why = st.place(room.at[:0], l, keys, p)
		}
		if why != "" {
			return nil, why
		}
		if initial && r.Threshold > 0 {
			if in := room.initials; in == nil || in.first || in.repeats || !s.compressPulled(st, l, p, keys, values) {
				return nil, ReasonUnpulled
			}
			s.codec.counts.why(ReasonUnpulled)
			return v, ""
		}
		st.save(l.Layer, l.extent, room.at)
		l.meter.push(l.Layer, values)
		s.compress(l.Layer, func() error { return l.CompressAt(&room.work, v, room.at, values) })
		noteAge(l.extent, l.Layer)
		// Reading the whole residual costs more than the push. Every 64th is often
		// enough to drop an empty layer.
		if r.Threshold == 0 && l.Stats().Pushes%64 == 0 {
			if left, _ := l.Residual(); left == 0 {
				st.dropNarrow(p.layer())
			}
		}
	}
	return v, ""
}

// compressPulled sets the vector to the values to send of a piece some of whose keys
// were not pulled: all values of those keys, which may be initial values, and of the
// others those that pass the threshold. room.at has the positions of all values. It
// reports whether there are others at all.
func (s *Sender) compressPulled(st *stream, l *narrowLayer, p *piece, keys pslite.Keys, values []byte) bool {
	room, v, size := &s.pushing, &s.pushing.vector, p.kind.Size()
	room.some, room.chosen, room.gradient = room.some[:0], room.chosen[:0], room.gradient[:0]
	first := uint32(0)
	for i := range p.keys {
		width := uint32(p.widthOf(i))
		if room.initials.pulledKey(keys.At(p.first + i)) {
			for j := first; j < first+width; j++ {
				room.chosen = append(room.chosen, j)
				room.some = append(room.some, room.at[j])
			}
			room.gradient = append(room.gradient, values[int(first)*size:int(first+width)*size]...)
		}
		first += width
	}
	if len(room.some) == 0 {
		return false
	}
	st.save(l.Layer, l.extent, room.some)
	l.meter.push(l.Layer, room.gradient)
	s.compress(l.Layer, func() error { return l.CompressAt(&room.work, &room.part, room.some, room.gradient) })
	v.Reset(p.kind, p.values())
	// Merges the two: values of the thresholded keys from part, where its mask has
	// them, all others from values.
	sent, next := room.part.Values, 0
	for i := range p.values() {
		one := values[i*size : (i+1)*size]
		if next < len(room.chosen) && int(room.chosen[next]) == i {
			next++
			if !room.part.Mask.Has(next - 1) {
				continue
			}
			one, sent = sent[:size], sent[size:]
		}
		v.Mask.Set(i)
		v.Values = append(v.Values, one...)
	}
	return true
}

// compress calls Compress or CompressAt of a layer and counts numbers that are not
// finite.
func (s *Sender) compress(l *threshold.Layer, by func() error) {
	before := l.Stats().NonFinite
	if err := by(); err != nil {
		panic(err) // the piece has the layer's length
	}
	if l.Stats().NonFinite != before {
		s.codec.counts.why(ReasonNotFinite)
	}
}

// addOwed adds the residuals in layers of other spans, which earlier rules made, to a
// piece of few values a key, and reports whether there were any. When rules change,
// spans change, and so does the layer of a key: its old residual must reach the
// server through the new one.
func (s *Sender) addOwed(st *stream, p *piece, keys pslite.Keys, values []byte) (changed bool) {
	// A dense key's layer goes by the key alone, whatever the spans are.
	if p.dense() || len(st.narrow) == 0 || s.pushing.apart {
		return false
	}
	room := &s.pushing
	for id, l := range st.narrow {
		if id.kind != p.kind || id == p.layer() || id.Last < p.span.First || id.First > p.span.Last {
			continue
		}
		// Under no rule the old layer lets everything pass, so that compressing into it
		// empties it for these keys.
		follow(l.Layer, &l.rule, noRule, id.First)
		rest := values
		for i := range p.keys {
			one := rest[:p.widthOf(i)*p.kind.Size()]
			rest = rest[len(one):]
			from, width := l.index.find(keys.At(p.first + i))
			if width == 0 || width != p.widthOf(i) {
				continue
			}
			room.at = room.at[:0]
			for j := range uint32(width) {
				room.at = append(room.at, from+j)
			}
			st.save(l.Layer, l.extent, room.at)
			s.compress(l.Layer, func() error { return l.CompressAt(&room.work, &room.vector, room.at, one) })
			room.vector.Expand(one)
			changed = true
		}
		if left, _ := l.Residual(); left == 0 {
			st.dropNarrow(id)
		}
	}
	return changed
}
