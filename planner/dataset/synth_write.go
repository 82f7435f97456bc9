package dataset

import (
	"bufio"
	"io"
	"iter"
	"strconv"
)

// WriteLibsvm writes rows as libsvm text, one per line, and returns the number of rows written.
func WriteLibsvm(w io.Writer, rows iter.Seq[SyntheticRow]) (int, error) {
	out := bufio.NewWriterSize(w, 1<<16)
	var line []byte
	n := 0
	for row := range rows {
		line = strconv.AppendFloat(line[:0], row.Label, 'g', -1, 64)
		for i, id := range row.IDs {
			line = append(line, ' ')
			line = strconv.AppendUint(line, id, 10)
			line = append(line, ':')
			// Six digits keep files small; a value read back may differ in its last bits.
			line = strconv.AppendFloat(line, float64(row.Values[i]), 'g', 6, 32)
		}
		if _, err := out.Write(append(line, '\n')); err != nil {
			return n, err
		}
		n++
	}
	return n, out.Flush()
}

// WriteCriteo writes clicks in the format of the Criteo logs, separated by tabs: label, 13 numbers,
// and 26 categories as 8 hexadecimal digits. An unknown number is empty. It returns the number of
// rows written.
func WriteCriteo(w io.Writer, clicks iter.Seq[Click]) (int, error) {
	out := bufio.NewWriterSize(w, 1<<16)
	var line []byte
	n := 0
	for k := range clicks {
		line = append(line[:0], '0')
		if k.Clicked {
			line[0] = '1'
		}
		for _, x := range k.Numbers {
			line = append(line, '\t')
			if x >= 0 {
				line = strconv.AppendInt(line, int64(x), 10)
			}
		}
		for c, v := range k.Categories {
			line = append(line, '\t')
			// The column is in the upper byte, so columns of up to 2^24 values have none in common:
			// readers that ignore the column do not confuse them.
			line = appendHex(line, scramble(uint32(c)<<24^v))
		}
		if _, err := out.Write(append(line, '\n')); err != nil {
			return n, err
		}
		n++
	}
	return n, out.Flush()
}

// scramble is a bijection of 32-bit numbers (the finalizer of MurmurHash3).
func scramble(x uint32) uint32 {
	x ^= x >> 16
	x *= 0x85ebca6b
	x ^= x >> 13
	x *= 0xc2b2ae35
	return x ^ x>>16
}

// appendHex appends x as 8 hexadecimal digits.
func appendHex(b []byte, x uint32) []byte {
	const digits = "0123456789abcdef"
	for shift := 28; shift >= 0; shift -= 4 {
		b = append(b, digits[x>>shift&15])
	}
	return b
}
