package ef21

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/quantize"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// Encoder is memory that vectors can share if they take turns. Its zero value is ready.
type Encoder struct {
	selector vector.Selector
	vector   sparse.Vector
	room     room
	kept     []float32 // differences that go
	half     []byte    // of 16 bits
	back     []byte    // their values as the receiver decodes them
	packer   packer
}

// Append appends C(values - copied) and updates copied to the receiver's new copy.
// Both have the same number of bytes, of one kind of number. sent is how many numbers
// are changed by the encoded difference. With ok false the differences are not all
// finite and cannot be rounded: nothing was appended, copied may hold anything, and
// the caller has to send the values whole and copy them.
func (e *Encoder) Append(dst []byte, c Config, kind element.Kind, t *Threshold, copied, values []byte) (encoded []byte, sent int, ok bool) {
	if c.Sparsity == 0 {
		return e.appendAll(dst, c, kind, copied, values)
	}
	n, rounded := len(values)/kind.Size(), c.Bits > 0 || c.Half && kind.Size() > 2
	e.renew(t, c.Sparsity, kind, copied, values)
	v := &e.vector
	if v.Resize(kind, n); rounded {
		v.Resize(element.Float32, n) // which differences are
	}
	e.kept = e.kept[:0]
	size := kind.Size()
	for from := 0; from < n; from += chunk {
		to, before := min(from+chunk, n), len(v.At)
		// t.limit passes NaNs, so a number that is not finite goes as it is where numbers
		// are not rounded.
		x, w := values[from*size:to*size], copied[from*size:to*size]
		var d []float32
		d, v.At = e.room.subtract(kind, x, w, t.limit(), v.Mask[from/64:(to+63)/64], v.At, from)
		if !rounded {
			v.Values = take(v.Values, v.At[before:], size, values, copied)
			continue
		}
		for _, i := range v.At[before:] {
			e.kept = append(e.kept, d[int(i)-from])
		}
	}
	sent = len(v.At)
	t.judge(sent, n, c.Sparsity)
	if !rounded {
		return v.Append(append(dst, byte(formNumbers))), sent, true
	}
	for _, d := range e.kept {
		if d-d != 0 {
			return dst, 0, false
		}
	}
	v.Values = append(v.Values[:0], bytesOf(e.kept)...)
	return e.appendSome(dst, c, kind, copied), sent, true
}

// renew computes the threshold where that is due, from a sample of the differences.
func (e *Encoder) renew(t *Threshold, sparsity float64, kind element.Kind, copied, values []byte) {
	if t.known {
		return
	}
	size := kind.Size()
	t.tau = e.selector.Sample(len(values)/size, sparsity, func(i int) float64 {
		// The receiver has it: with NaN for NaN - NaN the numbers beside it would never go.
		if bytes.Equal(values[i*size:(i+1)*size], copied[i*size:(i+1)*size]) {
			return 0
		}
		return float64(element.ToFloat32(kind.At(values, i) - kind.At(copied, i)))
	})
	if t.tau-t.tau != 0 { // more differences than may be sent are infinite or NaN
		t.tau = math.MaxFloat32
	}
	t.known = true
}

// take appends the numbers at the positions to dst, and copies them into the copy:
// what the receiver replaces, see Decoder.numbers. NaNs and infinities pass as bits.
func take(dst []byte, at []uint32, size int, values, copied []byte) []byte {
	start := len(dst)
	dst = slices.Grow(dst, len(at)*size)[:start+len(at)*size]
	out := dst[start:]
	switch size {
	case 4:
		for _, i := range at {
			v := binary.LittleEndian.Uint32(values[4*i:])
			binary.LittleEndian.PutUint32(out, v)
			binary.LittleEndian.PutUint32(copied[4*i:], v)
			out = out[4:]
		}
	case 2:
		for _, i := range at {
			v := binary.LittleEndian.Uint16(values[2*i:])
			binary.LittleEndian.PutUint16(out, v)
			binary.LittleEndian.PutUint16(copied[2*i:], v)
			out = out[2:]
		}
	default:
		for _, i := range at {
			v := values[int(i)*size : (int(i)+1)*size]
			copy(copied[int(i)*size:], v)
			out = out[copy(out, v):]
		}
	}
	return dst
}

// appendSome appends the differences in e.vector, rounded, and adds the rounded ones
// to the copy. It decodes its own output for that: the copy must become the one that
// the receiver computes.
func (e *Encoder) appendSome(dst []byte, c Config, kind element.Kind, copied []byte) []byte {
	v := &e.vector
	if c.Bits > 0 {
		dst = v.AppendHeader(append(dst, byte(formSome)))
		before := len(dst)
		dst, _ = c.rounding().Append(dst, element.Float32, v.Values, 0)
		e.back = mustDecode(e.back, len(e.kept), dst[before:])
	} else {
		dst = v.AppendHeader(append(dst, byte(formHalves)))
		e.half = slices.Grow(e.half[:0], 2*len(e.kept))[:2*len(e.kept)]
		vector.RoundToBFloat16(e.half, e.kept)
		dst = sparse.AppendValues(dst, element.BFloat16, e.half, true)
		e.back = slices.Grow(e.back[:0], 4*len(e.kept))[:4*len(e.kept)]
		vector.FromBFloat16(e.back, e.half)
	}
	addAt(kind, copied, v.At, e.back)
	return dst
}

// appendAll appends all differences, rounded, in chunks, and adds the rounded
// differences to the copy chunk by chunk. If a difference is not finite, chunks
// before it have changed the copy already: the caller must replace it.
func (e *Encoder) appendAll(dst []byte, c Config, kind element.Kind, copied, values []byte) (encoded []byte, sent int, ok bool) {
	n, size, start := len(values)/kind.Size(), kind.Size(), len(dst)
	// A chunk ends with a bucket, so that the codes of all chunks are those of the vector
	// as a whole.
	each := max(1, chunk/c.Bucket) * c.Bucket
	f, codes := formAll, &dst
	if c.Packed {
		f, codes = formPacked, &e.packer.plain
		e.packer.plain = e.packer.plain[:0]
	}
	dst = binary.AppendUvarint(append(dst, byte(f)), uint64(each))
	v := &e.vector
	v.Resize(element.Float32, min(n, each))
	for from := 0; from < n; from += each {
		to := min(from+each, n)
		x, w := values[from*size:to*size], copied[from*size:to*size]
		var d []float32
		d, v.At = e.room.subtract(kind, x, w, float32(math.Inf(1)), v.Mask, v.At[:0], 0)
		// A tau of infinity is reached only by infinities and NaNs.
		if len(v.At) > 0 {
			return dst[:start], 0, false
		}
		before := len(*codes)
		*codes, _ = c.rounding().Append(*codes, element.Float32, bytesOf(d), 0)
		e.back = mustDecode(e.back, len(d), (*codes)[before:])
		e.room.addNumbers(kind, w, e.back)
		if c.Packed && (to == n || len(*codes) >= blockSize) {
			dst = e.packer.flush(dst)
		}
	}
	return dst, n, true
}

// mustDecode decodes the count differences just written, as the receiver will.
func mustDecode(dst []byte, count int, src []byte) []byte {
	dst, _, err := quantize.Decode(dst[:0], element.Float32, count, src)
	if err != nil {
		panic(err) // the encoder does not write what its decoder refuses
	}
	return dst
}
