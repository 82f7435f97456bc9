package migrate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

var le = binary.LittleEndian

// difference returns what must be added to have to get want; both are arrays of type t and the
// result is new memory. Integers wrap around. The sum of floating point values is rounded, so it
// may need another correction. Values that are not finite cannot be reached by adding, and are an
// error.
func difference(want, have []byte, t pslite.DataType) ([]byte, error) {
	size := t.Size()
	if len(want) != len(have) || len(want)%size != 0 {
		return nil, fmt.Errorf("%d bytes of type %d became %d", len(want), t, len(have))
	}
	out := make([]byte, len(want))
	for i := 0; i < len(want); i += size {
		w, h, o := want[i:i+size], have[i:i+size], out[i:i+size]
		switch t {
		case pslite.Float:
			a, b := math.Float32frombits(le.Uint32(w)), math.Float32frombits(le.Uint32(h))
			if !finite(float64(a)) || !finite(float64(b)) {
				return nil, fmt.Errorf("a value is %v, which no addition takes away", a)
			}
			le.PutUint32(o, math.Float32bits(a-b))
		case pslite.Double:
			a, b := math.Float64frombits(le.Uint64(w)), math.Float64frombits(le.Uint64(h))
			if !finite(a) || !finite(b) {
				return nil, fmt.Errorf("a value is %v, which no addition takes away", a)
			}
			le.PutUint64(o, math.Float64bits(a-b))
		case pslite.Int8, pslite.Uint8:
			o[0] = w[0] - h[0]
		case pslite.Int16, pslite.Uint16:
			le.PutUint16(o, le.Uint16(w)-le.Uint16(h))
		case pslite.Int32, pslite.Uint32:
			le.PutUint32(o, le.Uint32(w)-le.Uint32(h))
		case pslite.Int64, pslite.Uint64:
			le.PutUint64(o, le.Uint64(w)-le.Uint64(h))
		default:
			return nil, fmt.Errorf("it is not known what numbers values of type %d have, so they cannot be subtracted", t)
		}
	}
	return out, nil
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// same reports whether two arrays of type t are equal to the last bit, except for the sign of zero:
// adding to +0 never gives -0.
func same(a, b []byte, t pslite.DataType) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if len(a) != len(b) || t != pslite.Float && t != pslite.Double {
		return false
	}
	size := t.Size()
	for i := 0; i+size <= len(a); i += size {
		x, y := a[i:i+size], b[i:i+size]
		if !bytes.Equal(x, y) && !(zero(x) && zero(y)) {
			return false
		}
	}
	return true
}

// zero reports whether the bytes are a floating point zero of either sign.
func zero(b []byte) bool {
	for i, x := range b {
		if x != 0 && !(i == len(b)-1 && x == 0x80) {
			return false
		}
	}
	return true
}
