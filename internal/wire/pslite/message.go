package pslite

import (
	"fmt"
	"math"
	"slices"
)

// Message is a view of one whole message. Nothing in it is a copy: it is valid as long
// as the frames are, and a second Decode changes it.
type Message struct {
	// Identity is a frame before the meta that names the sender ("ps8"). BytePS's
	// servers put it before their answers, which go back on the connection of the
	// request; nil in all other messages.
	Identity []byte
	Meta     Meta
	Data     [][]byte // the data frames: none, or keys, values and perhaps lengths
}

// Decode reads a message from all of its frames, checks it, and keeps slices of them.
func (m *Message) Decode(det *Detector, frames [][]byte) (Dialect, error) {
	d, err := m.DecodeMeta(det, frames)
	if err != nil {
		return d, err
	}
	return d, m.Check()
}

// DecodeMeta is Decode for frames that may be only the leading ones of a message: it
// does not look at the data frames; Check does. On an error Data holds the data frames
// nevertheless.
func (m *Message) DecodeMeta(det *Detector, frames [][]byte) (Dialect, error) {
	if len(frames) == 0 {
		return Unknown, fmt.Errorf("pslite: a message without frames")
	}
	m.Identity = nil
	if len(frames) > 1 {
		// PS-lite's metas begin otherwise, so that the two cannot be confused.
		if _, ok := ParseIdentity(frames[0]); ok {
			m.Identity, frames = frames[0], frames[1:]
		}
	}
	m.Data = frames[1:]
	return det.Decode(frames[0], &m.Meta)
}

// Check returns the first fault of the data frames: a keys frame that is not made of
// 8-byte keys, or lengths that do not fit keys and values. The methods below can read a
// request or answer that passes without further checks. Whether keys ascend is not
// checked, as that would read all of them.
func (m *Message) Check() error {
	if !m.Meta.Data() || len(m.Data) == 0 {
		return nil
	}
	// PS-lite sends keys and values together, even if one of them is empty.
	if len(m.Data) == 1 {
		return fmt.Errorf("pslite: a data message of keys without values")
	}
	if n := len(m.Data[0]); n%8 != 0 {
		return fmt.Errorf("pslite: keys frame of %d bytes, not a multiple of 8", n)
	}
	if len(m.Data) < 3 {
		return nil
	}
	if keys, n := len(m.Data[0])/8, len(m.Data[2]); n != 4*keys {
		return fmt.Errorf("pslite: lengths frame of %d bytes for %d keys", n, keys)
	}
	if len(m.Data[1]) == 0 { // a pull's request: the lengths are those wanted
		return nil
	}
	if sum, have := m.Lens().Sum(), m.Values().Len(); sum != int64(have) {
		return fmt.Errorf("pslite: lengths add up to %d, but got %d values", sum, have)
	}
	return nil
}

// Keys returns the keys, ascending and unique as PS-lite demands of its callers; none
// if there are no data frames or the message is not about keys.
func (m *Message) Keys() Keys {
	if len(m.Data) == 0 || !m.Meta.Data() {
		return nil
	}
	return m.Data[0]
}

// Values returns the values, with their type if the meta lists it; none if there are
// none.
func (m *Message) Values() Values {
	if len(m.Data) < 2 || !m.Meta.Data() {
		return Values{}
	}
	v := Values{Bytes: m.Data[1]}
	if len(m.Meta.DataTypes) > 1 {
		v.Type = m.Meta.DataTypes[1]
	}
	return v
}

// Lens returns how many values each key has, for messages that say it; nil if all keys
// have the same number.
func (m *Message) Lens() Lens {
	if len(m.Data) < 3 || !m.Meta.Data() {
		return nil
	}
	return m.Data[2]
}

// Keys is a keys frame: uint64, little endian.
type Keys []byte

// Len returns the number of keys.
func (k Keys) Len() int { return len(k) / 8 }

// At returns the i-th key.
func (k Keys) At(i int) uint64 { return le.Uint64(k[8*i:]) }

// Ascend reports whether the keys ascend and are unique.
func (k Keys) Ascend() bool {
	for i := 1; i < k.Len(); i++ {
		if k.At(i) <= k.At(i-1) {
			return false
		}
	}
	return true
}

// Ordered reports whether no key is less than the one before it.
func (k Keys) Ordered() bool {
	for i := 1; i < k.Len(); i++ {
		if k.At(i) < k.At(i-1) {
			return false
		}
	}
	return true
}

// Sorted returns the keys in ascending order: k itself where they are.
func (k Keys) Sorted() Keys {
	if k.Ordered() {
		return k
	}
	all := k.AppendTo(nil)
	slices.Sort(all)
	return AppendKeys(nil, all)
}

// AppendTo appends the keys to dst.
func (k Keys) AppendTo(dst []uint64) []uint64 {
	for i := range k.Len() {
		dst = append(dst, k.At(i))
	}
	return dst
}

// AppendKeys appends a keys frame of keys to dst.
func AppendKeys(dst []byte, keys []uint64) []byte {
	for _, k := range keys {
		dst = le.AppendUint64(dst, k)
	}
	return dst
}

// Lens is a lengths frame: int32, little endian.
type Lens []byte

// Len returns the number of lengths.
func (l Lens) Len() int { return len(l) / 4 }

// At returns the i-th length.
func (l Lens) At(i int) int32 { return int32At(l, 4*i) }

// Sum returns the sum of all lengths.
func (l Lens) Sum() int64 {
	var sum int64
	for i := range l.Len() {
		sum += int64(l.At(i))
	}
	return sum
}

// AppendLens appends a lengths frame of lens to dst.
func AppendLens(dst []byte, lens []int32) []byte {
	for _, n := range lens {
		dst = le.AppendUint32(dst, uint32(n))
	}
	return dst
}

// Values is a values frame with its type.
type Values struct {
	Type  DataType
	Bytes []byte
}

// Len returns the number of values.
func (v Values) Len() int { return len(v.Bytes) / v.Type.Size() }

// Float32 returns the i-th value of type Float.
func (v Values) Float32(i int) float32 { return math.Float32frombits(le.Uint32(v.Bytes[4*i:])) }

// AppendFloat32 appends a values frame of vals, type Float, to dst.
func AppendFloat32(dst []byte, vals []float32) []byte {
	for _, v := range vals {
		dst = le.AppendUint32(dst, math.Float32bits(v))
	}
	return dst
}
