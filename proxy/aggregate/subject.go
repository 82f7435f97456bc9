package aggregate

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// subject is what pushes must have in common to be added value by value: app, command, the type
// of the values, and the same keys with as many values each. Of two subjects that differ in their
// keys alone, what they have for the same keys can be added (fold.go).
type subject struct {
	app, customer, head int32
	kind                pslite.DataType
	size                int // bytes of values
	hash                uint64
	keys, lens          []byte // lens: nil where all keys have as many values
	// row is the number of bytes of a key's values or, with lens, of each of their elements; 0: the
	// values cannot be told apart by keys.
	row int
	// stay has for each key whether its values stay in this push, and no others are added to them:
	// the connection has not pushed the key before, or the values are in another push already. nil:
	// no key does.
	stay  []bool
	isNew bool // the connection has not pushed this list before
}

// about is the part of a subject that is known before lens are; a key list is remembered by
// it, hashed.
type about struct {
	app, customer int32
	size          int
	hash          uint64
}

// seed is random for each process, so that a job cannot make keys that collide.
var seed = maphash.MakeSeed()

func (s *subject) about() about { return about{s.app, s.customer, s.size, s.hash} }

// subjectOf returns the subject of a push with that many bytes of values. keys and lens refer
// to the message's memory; see clone.
func subjectOf(m *pslite.Message, size int) (s subject) {
	s = subject{app: m.Meta.AppID, customer: m.Meta.CustomerID, head: m.Meta.Head, size: size, keys: m.Data[0]}
	if len(m.Meta.DataTypes) > 1 {
		s.kind = m.Meta.DataTypes[1]
	}
	if len(m.Data) > 2 {
		s.lens = m.Data[2]
	}
	s.hash = maphash.Bytes(seed, s.keys)
	return s
}

// equal reports whether pushes of two subjects can be added. Hashes are compared first; keys
// decide.
func (s *subject) equal(o *subject) bool {
	return s.about() == o.about() && s.head == o.head && s.kind == o.kind && (s.lens == nil) == (o.lens == nil) &&
		bytes.Equal(s.keys, o.keys) && bytes.Equal(s.lens, o.lens)
}

// span returns a range that contains all keys; PS-lite's keys ascend.
func (s *subject) span() measure.KeyRange {
	n := len(s.keys)
	if n < 8 || n%8 != 0 {
		return measure.AllKeys
	}
	k := measure.KeyRange{First: binary.LittleEndian.Uint64(s.keys), Last: binary.LittleEndian.Uint64(s.keys[n-8:])}
	if k.Last < k.First {
		return measure.AllKeys
	}
	return k
}

// clone returns a subject with memory of its own; stay is the caller's already.
func (s subject) clone() subject {
	s.keys, s.lens = bytes.Clone(s.keys), bytes.Clone(s.lens)
	return s
}

// listBytes returns the size of the lists of a subject: keys, lens and stay, which a batch may get
// later.
func (s *subject) listBytes() int { return len(s.keys) + len(s.lens) + len(s.keys)/8 }

// addable reports whether pushes of the subject can be added; chars says what CHAR and OTHER are,
// unless the command says something else.
func (s *subject) addable(chars string) bool {
	if s.kind == pslite.Char || s.kind == pslite.Other {
		_, ok := element.OfChars(chars, s.head)
		return ok
	}
	_, ok := adderOf(s.kind, chars)
	return ok
}

// adder adds the values in src to those in dst, of the same length.
type adder func(dst, src []byte)

// adderOf returns the adder for values of a type, and false where they cannot be added; chars
// says what CHAR and OTHER are.
func adderOf(t pslite.DataType, chars string) (adder, bool) {
	switch t {
	case pslite.Float:
		return floats(element.Float32), true
	case pslite.Double:
		return floats(element.Float64), true
	case pslite.Char, pslite.Other:
		kind, err := element.Parse(chars)
		return floats(kind), chars != "" && err == nil
	case pslite.Int8, pslite.Uint8, pslite.Int16, pslite.Uint16, pslite.Int32, pslite.Uint32, pslite.Int64, pslite.Uint64:
		return func(dst, src []byte) { vector.SumInt(t.Size(), dst, src) }, true
	}
	return nil, false
}

func floats(kind element.Kind) adder {
	return func(dst, src []byte) { vector.SumFloat(kind, dst, src) }
}

// unit returns the size of one number of a type, in bytes.
func unit(t pslite.DataType, chars string) int {
	if t == pslite.Char || t == pslite.Other {
		if kind, err := element.Parse(chars); err == nil {
			return kind.Size()
		}
	}
	return t.Size()
}
