package sparse

import (
	"fmt"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// valueForm is the first byte of encoded values.
type valueForm byte

const (
	valuesRaw    valueForm = iota // as they are
	valuesPacked                  // blocks; see coding
)

// AppendValues appends numbers of a kind. With pack, exponents are coded block by block,
// since the largest of many numbers have few different ones; the other bits, and without
// pack all bits, go as they are. Values that packing would make longer go as they are too.
func AppendValues(dst []byte, kind element.Kind, values []byte, pack bool) []byte {
	if pack && len(values) > 0 {
		start := len(dst)
		dst = append(dst, byte(valuesPacked))
		l := layoutOf(kind)
		var r writeRoom
		for rest := values; len(rest) > 0; {
			part := rest[:min(len(rest), valueBlock*kind.Size())]
			dst = l.appendBlock(dst, part, &r)
			rest = rest[len(part):]
		}
		if len(dst)-start <= 1+len(values) {
			return dst
		}
		dst = dst[:start]
	}
	dst = append(dst, byte(valuesRaw))
	return append(dst, values...)
}

// DecodeValues appends to dst the count numbers of a kind that [AppendValues] wrote and
// returns what follows them in src. Memory is taken only for as many numbers as src can
// hold.
func DecodeValues(dst []byte, kind element.Kind, count int, src []byte) (values, rest []byte, err error) {
	if len(src) == 0 {
		return nil, nil, fmt.Errorf("%w: it ends before the values", ErrCorrupt)
	}
	l := layoutOf(kind)
	switch f := valueForm(src[0]); f {
	case valuesRaw:
		src = src[1:]
		if count > len(src)/kind.Size() {
			return nil, nil, fmt.Errorf("%w: it ends within %d values", ErrCorrupt, count)
		}
		return append(dst, src[:count*kind.Size()]...), src[count*kind.Size():], nil
	case valuesPacked:
		src = src[1:]
		// Fractions and signs alone take that many bits, so a short input cannot claim many
		// values.
		if uint64(count)*uint64(l.rest) > 8*uint64(len(src)) {
			return nil, nil, fmt.Errorf("%w: it ends within %d values", ErrCorrupt, count)
		}
		dst = slices.Grow(dst, count*kind.Size())
		var r room
		for ; count > 0; count -= min(count, valueBlock) {
			if dst, src, err = l.readBlock(dst, min(count, valueBlock), src, &r); err != nil {
				return nil, nil, err
			}
		}
		return dst, src, nil
	default:
		return nil, nil, fmt.Errorf("%w: values of unknown form %d", ErrCorrupt, f)
	}
}
