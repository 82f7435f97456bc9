package values

import (
	"encoding/binary"
	"hash/maphash"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/slim"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

// pullBytes bounds the values that each end of a link remembers of pulls, separately
// for slim and for unchanged.
const pullBytes = 256 << 20

// maxRounds bounds the layers of slim on a link.
const maxRounds = 4096

// rounds are slim's layers in one direction of a link, at its sending end. A layer is a
// dense key, or a list of keys of few values that has come at least twice: most lists
// of mini-batches never come again, and remembering them would use up the memory.
//
// The receiver numbers layers as the sender does. It keeps a core for each, and for
// those of pulls the values; left is the sender's account of the receiver's memory, by
// the costs that use.cost gives.
type rounds struct {
	seed    maphash.Seed
	whose   [2]int32 // app and customer of the message at hand
	layers  map[uint64]*round
	once    map[uint64]bool // names of lists of keys that came once
	left    int             // bytes that the receiver may still remember
	changes []byte          // see weights
}

// round is a layer of slim. The receiver knows it by its number.
type round struct {
	number int
	rule   Slim
	sender *slim.Sender
	has    []byte // with Slim.Changes: the receiver's values; else nil
}

// weights returns the numbers by whose magnitude the core of a layer's values is
// chosen: the values, or with Slim.Changes their differences from the receiver's.
// Valid until the next call.
func (rs *rounds) weights(l *round, kind element.Kind, values []byte) []byte {
	if l.has == nil {
		return values
	}
	rs.changes = slices.Grow(rs.changes[:0], len(values))[:len(values)]
	for i := range len(values) / kind.Size() {
		kind.Put(rs.changes, i, kind.At(values, i)-kind.At(l.has, i))
	}
	return rs.changes
}

func newRounds(bytes int) rounds {
	return rounds{seed: maphash.MakeSeed(), layers: map[uint64]*round{}, once: map[uint64]bool{}, left: bytes}
}

// use is what a layer is for.
type use int

const (
	pushed use = iota
	pulled     // an answer: both ends remember the values
	alone      // pushed as a sparse vector: the receiver knows nothing of rounds
)

// cost is the memory that a layer of size bytes takes of the bound: its values if they
// are remembered, and an eighth for the core, a bit for each number.
func (u use) cost(size int) int {
	if u == pulled {
		return size + size/8
	}
	return size / 8
}

// name is the same for pieces of the same app and customer, use, keys, kind and length,
// and for no others but with the probability of a collision of 64 bits. The hash is
// seeded at random for each link, so that nobody can construct one.
func (rs *rounds) name(p *piece, keys pslite.Keys, u use) uint64 {
	var h maphash.Hash
	h.SetSeed(rs.seed)
	maphash.WriteComparable(&h, [6]int{p.keys, p.to - p.from, int(p.kind), int(u), int(rs.whose[0]), int(rs.whose[1])})
	h.Write(keys[8*p.first : 8*(p.first+p.keys)])
	return h.Sum64()
}

// of returns a piece's layer. isFirst says that the receiver does not know it yet: it
// must be introduced, with all values if it is one of pulls. The layer is nil if there
// can be none, for which the reason says why, or none yet.
func (rs *rounds) of(p *piece, r *Rule, keys pslite.Keys, u use) (l *round, isFirst bool, why Reason) {
	name := rs.name(p, keys, u)
	l = rs.layers[name]
	if l != nil && l.rule == *r.Slim {
		return l, false, ""
	}
	if !p.dense() && l == nil && !rs.once[name] {
		if len(rs.once) >= maxRounds {
			clear(rs.once)
		}
		rs.once[name] = true
		return nil, false, ""
	}
	// A layer whose rule has changed keeps its number and its cost, and starts over.
	cost := u.cost(p.to - p.from)
	if l == nil && (len(rs.layers) >= maxRounds || cost > rs.left) {
		return nil, false, ReasonMemory
	}
	config := slim.Config{Alpha: r.Slim.Alpha, Epsilon: r.Slim.Epsilon, Rounds: r.Slim.Rounds, Seed: name}
	// The values that differ most are others each time, so that a core serves one
	// round.
	byChanges := u == pulled && r.Slim.Changes
	if byChanges {
		config.Rounds = 1
	}
	sender, err := slim.NewSender(p.kind, p.values(), config)
	if err != nil {
		panic(err) // rules are checked
	}
	fresh := &round{number: len(rs.layers), rule: *r.Slim, sender: sender}
	if byChanges {
		fresh.has = make([]byte, p.to-p.from)
	}
	if l != nil {
		fresh.number = l.number // under another rule, from the beginning
	} else {
		rs.left -= cost
	}
	rs.layers[name] = fresh
	return fresh, true, ""
}

// appendSlimPush appends what of a piece of a push goes by slim. With ok false nothing
// was appended, and the piece goes as it is.
func (s *Sender) appendSlimPush(head []byte, p *piece, r *Rule, keys pslite.Keys, values []byte, u use) (all []byte, sent int, ok bool) {
	l, isFirst, why := s.rounds.of(p, r, keys, u)
	if l == nil {
		if why != "" {
			s.codec.counts.why(why)
		}
		return head, 0, false
	}
	if u == alone {
		// A repetition of this push would repeat its bytes, and a round must not reach
		// the receiver twice. So the selection is slim's, but it goes as an ordinary
		// vector.
		_, v, err := l.sender.AppendHeader(nil, values)
		if err != nil {
			panic(err) // the piece has the layer's length
		}
		return s.appendVector(head, v, r), v.Count(), true
	}
	head = append(head, byte(partSlim))
	head, v := s.appendRound(head, l, isFirst, r, p.kind, values)
	return head, v.Count(), true
}

// appendRound appends a layer's number, whether it begins, and a round.
func (s *Sender) appendRound(head []byte, l *round, isFirst bool, r *Rule, kind element.Kind, values []byte) ([]byte, *sparse.Vector) {
	head = binary.AppendUvarint(head, uint64(l.number))
	var flags byte
	if isFirst {
		flags |= roundFirst
	}
	if r.Quantize > 0 {
		flags |= roundQuantized
	}
	head, v, err := l.sender.AppendHeaderBy(append(head, flags), s.rounds.weights(l, kind, values), values)
	if err != nil {
		panic(err) // the piece has the layer's length
	}
	// These become the receiver's values, so that the next round's differences are
	// right.
	if l.has != nil {
		v.Merge(l.has)
	}
	if r.Quantize > 0 {
		return s.quantize(head, r, v.Kind, v.Values), v
	}
	return sparse.AppendValues(head, v.Kind, v.Values, true), v
}

// Flags of a round.
const (
	roundFirst     byte = 1 << iota // the layer starts over
	roundQuantized                  // the values are those of package quantize
)

// appendPull appends the section of a pull's answer whose layout was read; with coded
// false, nothing.
func (s *Sender) appendPull(head []byte, m *pslite.Message) (all []byte, coded bool) {
	start := len(head)
	s.copies.begin(m)
	keys, vals := m.Keys(), m.Values().Bytes
	head = binary.AppendUvarint(head, uint64(len(vals)))
	for i := 0; i < len(s.layout.pieces); {
		p, pieces := s.group(i)
		i += pieces
		before := len(head)
		var form, sent int
		if head, form, sent = s.appendPulled(head, p, keys, vals[p.from:p.to]); form == formPlain {
			head = appendPlain(head, vals[p.from:p.to])
		} else {
			coded = true
		}
		// The worker gets these values in another form, so the copies no longer have
		// its values.
		if form != formPullThreshold && form != formPullQuantize {
			s.copies.drop(keys[8*p.first : 8*(p.first+p.keys)]) // the worker has other values now
		}
		s.codec.counts.coded(form, p.values(), sent, p.to-p.from, len(head)-before)
	}
	if !coded {
		return head[:start], false
	}
	return head, true
}

// appendPulled appends a piece of an answer, and returns in which form and how many of
// its values went. With formPlain it has appended nothing. Which codec applies is
// decided here, in this order: error feedback, activations, unchanged (with 16 bits or
// without), slim, 16 bits alone. Check keeps a rule from asking for two that choose.
func (s *Sender) appendPulled(head []byte, p *piece, keys pslite.Keys, values []byte) (all []byte, form, sent int) {
	r, n := p.rule(), p.values()
	switch {
	case !r.pulls() && r.Threshold == 0:
		return head, formPlain, n
	case !p.known:
		s.codec.counts.why(ReasonType)
		return head, formPlain, n
	case r.feedsBack():
		if head, form, sent, ok := s.appendCopied(head, p, r, keys, values); ok {
			return head, form, sent
		}
		return s.appendWire(head, p, r, values)
	case r.activates():
		return s.appendRows(head, p, r, values)
	case r.Unchanged && s.halves16(p, r) && s.halve(r, values):
		// The rounded values are compared with the rounded values of before: what did
		// not change by rounding is not sent.
		q := *p
		q.kind, q.from, q.to = wireKind(r.Wire), 0, len(s.halves)
		before := len(head)
		if head, form, sent = s.appendUnchanged(append(head, byte(partHalved), byte(q.kind)), &q, keys, s.halves); form == formPlain {
			return s.appendWire(head[:before], p, r, values)
		}
		return head, form, sent
	case r.Unchanged || !r.pulls():
		return s.appendUnchanged(head, p, keys, values)
	case r.Slim == nil:
		return s.appendWire(head, p, r, values)
	}
	if s.copies.apart {
		s.codec.counts.why(ReasonCommands)
		return head, formPlain, n
	}
	l, isFirst, why := s.rounds.of(p, r, keys, pulled)
	if l == nil {
		if why != "" {
			s.codec.counts.why(why)
		}
		return head, formPlain, n
	}
	if isFirst {
		copy(l.has, values)
		head = append(head, byte(partLearned))
		head = binary.AppendUvarint(head, uint64(l.number))
		head = binary.AppendUvarint(head, uint64(len(values)))
		return append(head, values...), formSlimPull, n
	}
	head, v := s.appendRound(append(head, byte(partFilled)), l, false, &Rule{}, p.kind, values)
	return head, formSlimPull, v.Count()
}

// appendUnchanged appends the values of a piece that differ from those that the
// worker got before. A list of keys that came lately is compared as a whole, without
// looking its keys up one by one; any other is compared key by key, if its keys have
// the same number of values each.
func (s *Sender) appendUnchanged(head []byte, p *piece, keys pslite.Keys, values []byte) (all []byte, form, sent int) {
	name := s.rounds.name(p, keys, pulled)
	if p.lens == nil && !p.dense() && !s.last.Knows(name) && !s.lately.again(name) {
		if encoded, sent, ok := s.keyed.append(head, p, keys, values); ok {
			return encoded, formUnchanged, sent
		}
	}
	changed := s.last.Changed()
	if encoded, ok := s.last.Append(append(head, byte(partRecalled)), name, p.kind, values); ok {
		if sent = int(s.last.Changed() - changed); encoded[len(head)+1] == 0 {
			sent = p.values()
		}
		return encoded, formUnchanged, sent
	}
	s.codec.counts.why(ReasonMemory)
	return head, formPlain, p.values()
}
