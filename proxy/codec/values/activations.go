package values

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/rows"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

// activates reports whether the rule thresholds activations.
func (r *Rule) activates() bool { return r.Activations > 0 }

// keeps reports whether pushes under the rule need a stream: for their residuals, or
// for the section that a repetition must send again.
func (r *Rule) keeps() bool { return r.thresholds() || r.activates() }

// checkActivations is the part of Check about activations.
func (r *Rule) checkActivations() error {
	switch {
	case !(r.Activations >= 0 && r.Activations < 1):
		return fmt.Errorf("threshold-activations %v: want a sparsity from 0 (off) to below 1, such as 0.95", r.Activations)
	case r.Row < 0:
		return fmt.Errorf("row %d: want 0 (one row per key) or a number of values", r.Row)
	case !r.activates() && (r.Row > 0 || r.ActivationsPushed):
		return errors.New("row and activations-pushed require threshold-activations, which is off")
	case r.activates() && r.Threshold > 0:
		return errors.New("threshold-activations and threshold exclude each other for the same keys: residuals of activation gradients would be lost; set separate rules for parameters and activations (keys)")
	case r.activates() && (r.Slim != nil || r.Unchanged || r.feedsBack()):
		return errors.New("threshold-activations excludes slim, unchanged, pull-threshold and pull-quantize for the same keys: each selects the values of a pull")
	}
	return nil
}

// activating is a Sender's state for activations and gradients for them. It lives from
// message to message only to reuse memory.
type activating struct {
	chooser rows.Chooser
	vector  sparse.Vector
	granted bool      // the answer being encoded may go by rows
	joined  piece     // several pieces as one, see group
	uses    []maskUse // of the keys of the push being encoded; nil: no rule needs them
}

// group returns the pieces from number i on that make one piece for activations, and how
// many they are. Layers of embeddings come as many dense keys of the same number of values:
// rows of all of them go in one part, whose positions and values are coded together.
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

// wantsRows reports whether a rule for activations holds for one of the keys, and which.
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

// ask records a pull of keys for which a rule thresholds activations, and returns the mode
// by which the head of the pull says whether its answer may come by rows; modeCompact if no
// such rule holds. Only this proxy, beside the worker, knows whether the worker's pulls and
// pushes pair, so it decides, for both ends.
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
	// The server's proxy identifies the answer by what is on the wire. If another worker of
	// this host has a pull in flight that looks the same, both answers come whole.
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

// pullsGradients reports whether the worker pushed some of the keys first: for these it
// holds the activations, and pulls gradients, which go by the positions of a mask and not
// by rows. It records the other keys as pulled first. The caller holds the stream's lock.
func (ps *pairs) pullsGradients(keys pslite.Keys) (some bool) {
	for i := range keys.Len() {
		pushed, _ := ps.roles.note(keys.At(i), false, ps.budget)
		some = some || pushed
	}
	return some
}

// pushesActivations reports whether the worker pushed all of a piece's keys before it ever
// pulled them, and records those that are new. The caller holds the stream's lock.
func (ps *pairs) pushesActivations(keys pslite.Keys, p *piece) bool {
	all := true
	for i := range p.keys {
		pushed, _ := ps.roles.note(keys.At(p.first+i), true, ps.budget)
		all = all && pushed
	}
	return all
}

// choose sets the vector to the values of a piece of activations that go. The reason says
// why its rows are unknown, if they are.
func (s *Sender) choose(p *piece, r *Rule, values []byte) Reason {
	c := &s.active.chooser
	for i := range p.keys {
		if r.Row > 0 && p.widthOf(i)%r.Row != 0 {
			return ReasonShape
		}
		// All keys have the width of the first.
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

// appendRows appends the chosen values of a piece of an answer's activations, with
// the bounds of their rows. With formPlain nothing was appended.
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
	// Open rows are listed as pairs of gap and length: the receiver lets their gradients
	// pass whole.
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

// activations returns the values to send of a piece of a push: of pushed activations
// the largest of each row, of gradients for activations those at the positions at
// which the activations went (DCT-MP, Algorithm 2); nil if all values go.
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

// masked sets the vector to what masks let pass of a piece's gradients, and returns nil if
// none applies. Keys without a mask go whole: a gradient that is left out wrongly would be
// lost, while one that is sent without need costs only bytes.
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
