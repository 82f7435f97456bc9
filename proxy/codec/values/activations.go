package values

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/rows"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// activates reports whether the rule thresholds activations.
func (r *Rule) activates() bool { return r.Activations > 0 }

// keeps reports whether something of pushes is remembered: what waits of them, or
// what a repeat has to be again.
func (r *Rule) keeps() bool { return r.thresholds() || r.activates() }

// checkActivations is the part of Check about activations.
func (r *Rule) checkActivations() error {
	switch {
	case !(r.Activations >= 0 && r.Activations < 1):
		return fmt.Errorf("threshold-activations %v: want a sparsity from 0 (off) to below 1, such as 0.95", r.Activations)
	case r.Row < 0:
		return fmt.Errorf("row %d: want 0 (what belongs to a key) or a number of values", r.Row)
	case !r.activates() && (r.Row > 0 || r.ActivationsPushed):
		return errors.New("row and activations-pushed say something of threshold-activations, which is off")
	case r.activates() && r.Threshold > 0:
		return errors.New("threshold-activations and threshold exclude each other for the same keys: a gradient for activations has no other to be added to, what waited of it would be lost; give parameters and activations rules of their own (keys)")
	case r.activates() && (r.Slim != nil || r.Unchanged || r.feedsBack()):
		return errors.New("threshold-activations excludes slim, unchanged, pull-threshold and pull-quantize for the same keys: all choose what of a pull goes")
	}
	return nil
}

// activating is a Sender's room for activations and gradients for them.
type activating struct {
	chooser rows.Chooser
	vector  sparse.Vector
	granted bool // the answer that is encoded may come by rows
	joined  piece
	uses    []maskUse // of the push that is encoded
}

// group returns the pieces from number i on that are one for activations, which are
// many keys of the same number of values as a rule, and how many they are.
func (s *Sender) group(i int) (*piece, int) {
	all := s.layout.pieces
	p := &all[i]
	if !p.dense() || !p.rule().activates() {
		return p, 1
	}
	n := 1
	for ; i+n < len(all); n++ {
		q := &all[i+n]
		if q.span != p.span || q.kind != p.kind || q.width != p.width || q.lens != nil || q.from != all[i+n-1].to || q.first != all[i+n-1].first+all[i+n-1].keys {
			break
		}
	}
	if n == 1 {
		return p, 1
	}
	s.active.joined = *p
	j := &s.active.joined
	j.keys, j.to = n, all[i+n-1].to
	return j, n
}

// wantsRows reports whether a rule for activations holds for one of the keys, and
// which.
func (s *Sender) wantsRows(keys pslite.Keys) (*Rule, bool) {
	for i := range s.spans {
		r := s.spans[i].rule
		if r == nil || !r.activates() {
			continue
		}
		for k := range keys.Len() {
			if s.spans[i].contains(keys.At(k)) {
				return r, true
			}
		}
	}
	return nil, false
}

// ask notes a pull of keys for which a rule thresholds activations, and returns how
// the head of the message says whether its answer may come by rows; modeCompact where
// no such rule holds.
func (s *Sender) ask(m *pslite.Message) byte {
	if isOwn(m.Meta.Timestamp) || len(m.Data) == 0 {
		return modeCompact
	}
	keys := m.Keys()
	rule, ok := s.wantsRows(keys)
	if !ok {
		return modeCompact
	}
	if !s.theirs.Rows {
		s.codec.counts.why(ReasonPeer)
		return modeCompact
	}
	st, why := s.stream(m, true)
	if st == nil {
		s.codec.counts.why(why)
		return modeWhole
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if rule.ActivationsPushed && st.pairs.pullsGradients(keys) {
		return modeWhole
	}
	q, why := st.pairs.pull(m.Meta.Timestamp, keys)
	if q != nil && !s.codec.asks.put(askingOf(s.link.Acceptor, m), asked{st, q}) {
		q, why = nil, ReasonAlike
	}
	if q == nil {
		s.codec.counts.why(why)
		return modeWhole
	}
	return modeAsks
}

// pullsGradients reports whether some of the keys are such as the worker pushed first,
// and notes the others as pulled first.
func (ps *pairs) pullsGradients(keys pslite.Keys) (some bool) {
	for i := range keys.Len() {
		pushed, _ := ps.roles.note(keys.At(i), false, ps.budget)
		some = some || pushed
	}
	return some
}

// pushesActivations reports whether all of a piece's keys are such as the worker
// pushed first, and notes those that are new.
func (ps *pairs) pushesActivations(keys pslite.Keys, p *piece) bool {
	all := true
	for i := range p.keys {
		pushed, _ := ps.roles.note(keys.At(p.first+i), true, ps.budget)
		all = all && pushed
	}
	return all
}

// choose makes the room's vector the values that go of a piece of activations; the
// reason is set where its rows are unknown.
func (s *Sender) choose(p *piece, r *Rule, values []byte) Reason {
	c := &s.active.chooser
	for i := range p.keys {
		if r.Row > 0 && p.widthOf(i)%r.Row != 0 {
			return ReasonShape
		}
		if p.lens == nil {
			break
		}
	}
	c.Begin(&s.active.vector, p.kind, p.values(), r.Activations)
	size := p.kind.Size()
	for i := range p.keys {
		width := p.widthOf(i)
		row := width
		if r.Row > 0 {
			row = r.Row
		}
		for ; width > 0; width -= row {
			c.Add(values[:row*size])
			values = values[row*size:]
		}
	}
	if c.NotFinite > 0 {
		s.codec.counts.why(ReasonNotFinite)
	}
	return ""
}

// appendRows appends what goes of a piece of an answer's activations. With formPlain
// it has appended nothing.
func (s *Sender) appendRows(head []byte, p *piece, r *Rule, values []byte) (all []byte, form, sent int) {
	if !s.active.granted {
		return s.appendWire(head, p, r, values)
	}
	if why := s.choose(p, r, values); why != "" {
		s.codec.counts.why(why)
		return s.appendWire(head, p, r, values)
	}
	start := len(head)
	head = binary.AppendUvarint(append(head, byte(partRows)), uint64(p.first))
	head = binary.AppendUvarint(head, uint64(p.keys))
	if p.lens == nil {
		head = binary.AppendUvarint(head, uint64(p.width)+1)
	} else {
		head = append(head, 0)
		for i := range p.keys {
			head = binary.AppendUvarint(head, uint64(p.widthOf(i)))
		}
	}
	open := s.active.chooser.Open
	head = binary.AppendUvarint(head, uint64(len(open)))
	at := 0
	for _, o := range open {
		head = binary.AppendUvarint(head, uint64(o.From-at))
		head = binary.AppendUvarint(head, uint64(o.To-o.From))
		at = o.To
	}
	head = s.appendVector(head, &s.active.vector, &Rule{Wire: r.Wire})
	if len(head)-start >= len(values) {
		s.codec.counts.why(ReasonNoGain)
		return s.appendWire(head[:start], p, r, values)
	}
	return head, formActivations, s.active.vector.Count()
}

// activations returns what goes of a piece of a push: of activations that are pushed
// the largest of each row, of gradients for activations the positions that their rows
// had; nil where all goes.
func (s *Sender) activations(st *stream, p *piece, r *Rule, keys pslite.Keys, values []byte) (v *sparse.Vector, form int) {
	if r.ActivationsPushed && st.pairs.pushesActivations(keys, p) {
		if why := s.choose(p, r, values); why != "" {
			s.codec.counts.why(why)
			return nil, formPlain
		}
		return &s.active.vector, formActivations
	}
	if v = s.masked(p, values); v == nil {
		return nil, formPlain
	}
	return v, formMasked
}

// masked makes the room's vector what masks let pass of a piece's gradients; nil where
// there is none. Keys without a mask go whole.
func (s *Sender) masked(p *piece, values []byte) *sparse.Vector {
	v := &s.active.vector
	v.Reset(p.kind, p.values())
	whole, at := 0, 0
	for i := range p.keys {
		width := p.widthOf(i)
		if !s.active.uses[p.first+i].copyTo(v.Mask, at, p.kind, width) {
			v.Mask.SetRun(at, width)
			whole++
		}
		at += width
	}
	if whole > 0 {
		s.codec.counts.why(ReasonUnmasked)
	}
	if whole == p.keys {
		return nil
	}
	v.Gather(values)
	return v
}
