package keylist

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// A delta list is a strictly ascending list: uvarint count; if that is not 0, uvarint first
// value; if it is over 1, uvarint stride, the greatest common divisor of all differences,
// and each difference divided by the stride, less 1, in blocks. Strides above 1 come from
// jobs that number keys by tensor and row, or keep low bits for the server.

// ascending reports whether the keys strictly ascend.
func ascending(list []byte) bool {
	if count(list) == 0 {
		return true
	}
	before := keyAt(list, 0)
	// Four at a time: one branch for the four, and loads without bounds checks.
	rest := list[keySize:]
	for ; len(rest) >= 4*keySize; rest = rest[4*keySize:] {
		four := (*[4 * keySize]byte)(rest)
		a, b := binary.LittleEndian.Uint64(four[0:]), binary.LittleEndian.Uint64(four[8:])
		c, d := binary.LittleEndian.Uint64(four[16:]), binary.LittleEndian.Uint64(four[24:])
		if before >= a || a >= b || b >= c || c >= d {
			return false
		}
		before = d
	}
	for ; len(rest) >= keySize; rest = rest[keySize:] {
		key := binary.LittleEndian.Uint64(rest)
		if before >= key {
			return false
		}
		before = key
	}
	return true
}

// strideOf returns the greatest common divisor of the differences of an ascending list of
// at least 2 keys. Of most lists it is 1 after a few keys, and then looks no further.
func strideOf(list []byte) uint64 {
	n := count(list)
	stride := keyAt(list, 1) - keyAt(list, 0)
	for i := 2; i < n && stride > 1; i++ {
		d := keyAt(list, i) - keyAt(list, i-1)
		if d%stride != 0 {
			stride = gcd(stride, d)
		}
	}
	return stride
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// appendDelta appends an ascending list of keys as a delta list.
func appendDelta(dst, list []byte) []byte {
	n := count(list)
	dst = binary.AppendUvarint(dst, uint64(n))
	if n == 0 {
		return dst
	}
	before := keyAt(list, 0)
	dst = binary.AppendUvarint(dst, before)
	if n == 1 {
		return dst
	}
	stride := strideOf(list)
	dst = binary.AppendUvarint(dst, stride)
	divide := dividerOf(stride)
	var block [blockLen]uint64
	for i := 1; i < n; i += blockLen {
		gaps := block[:min(blockLen, n-i)]
		keys := list[i*keySize:][:len(gaps)*keySize]
		for j := range gaps {
			key := binary.LittleEndian.Uint64(keys)
			keys = keys[keySize:]
			gaps[j] = divide.exactly(key-before) - 1
			before = key
		}
		dst = appendBlock(dst, gaps)
	}
	return dst
}

// A divider divides by one number without a remainder: by a shift for its powers of two,
// and by multiplication with the inverse of its odd part modulo 2^64. A division would take
// many times as long for each key.
type divider struct {
	shift   uint
	inverse uint64
}

// dividerOf returns the divider for n, which is not 0.
func dividerOf(n uint64) divider {
	shift := uint(bits.TrailingZeros64(n))
	odd := n >> shift
	inverse := odd // right in its 3 lowest bits; each step doubles them
	for range 5 {
		inverse *= 2 - odd*inverse
	}
	return divider{shift, inverse}
}

// exactly returns v / n for a v that is a multiple of n.
func (d divider) exactly(v uint64) uint64 { return v >> d.shift * d.inverse }

// deltaCount reads how many keys a delta list has, and returns what follows. It refuses
// more than most bytes of keys.
func deltaCount(src []byte, most int) (n int, rest []byte, err error) {
	keys, rest, err := uvarint(src)
	if err != nil {
		return 0, nil, err
	}
	// A block of 128 keys takes at least a byte, so that a short input cannot claim a long
	// list.
	if keys > uint64(max(most, 0)/keySize) || keys > 0 && (keys-1)/blockLen > uint64(len(rest)) {
		return 0, nil, fmt.Errorf("%w: %d keys, more than there can be", ErrCorrupt, keys)
	}
	return int(keys), rest, nil
}

// readDelta reads a delta list, appends its keys to list, and returns what follows it and
// the longer list. It refuses lists that would make list longer than most bytes, and keys
// beyond 64 bits.
func readDelta(src, list []byte, most int) (rest, keys []byte, err error) {
	n, src, err := deltaCount(src, most-len(list))
	if err != nil || n == 0 {
		return src, list, err
	}
	key, src, err := uvarint(src)
	if err != nil {
		return nil, nil, err
	}
	start := len(list)
	list = extend(list, int(n)*keySize)
	out := list[start:]
	putKey(out, 0, key)
	if n == 1 {
		return src, list, nil
	}
	stride, src, err := uvarint(src)
	if err != nil {
		return nil, nil, err
	}
	if stride == 0 {
		return nil, nil, fmt.Errorf("%w: a stride of 0", ErrCorrupt)
	}
	var block [blockLen]uint64
	for i := 1; i < int(n); i += blockLen {
		gaps := block[:min(blockLen, int(n)-i)]
		if src, err = readBlock(src, gaps); err != nil {
			return nil, nil, err
		}
		if key, err = addGaps(out[i*keySize:], gaps, key, stride); err != nil {
			return nil, nil, err
		}
	}
	return src, list, nil
}

// addGaps writes the keys that follow key to out and returns the last of them. Overflows
// are collected and reported once at the end.
func addGaps(out []byte, gaps []uint64, key, stride uint64) (uint64, error) {
	out = out[:len(gaps)*keySize]
	var overflow uint64
	for _, gap := range gaps {
		high, d := bits.Mul64(gap, stride)
		next, carry := bits.Add64(key, d, 0)
		next, carry2 := bits.Add64(next, stride, 0)
		overflow |= high | carry | carry2
		key = next
		binary.LittleEndian.PutUint64(out, key)
		out = out[keySize:]
	}
	if overflow != 0 {
		return 0, fmt.Errorf("%w: a key beyond 64 bits", ErrCorrupt)
	}
	return key, nil
}

func uvarint(src []byte) (uint64, []byte, error) {
	v, n := binary.Uvarint(src)
	if n <= 0 {
		return 0, nil, fmt.Errorf("%w: it ends within a number, or the number is too large", ErrCorrupt)
	}
	return v, src[n:], nil
}

// extend lengthens b by n bytes of any content.
func extend(b []byte, n int) []byte {
	if cap(b)-len(b) < n {
		b = append(b[:len(b):len(b)], make([]byte, n)...)
		return b
	}
	return b[:len(b)+n]
}
