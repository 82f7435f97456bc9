package dataset

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// A LineError says which line of which file is wrong, and why. The line is counted in the
// decompressed text.
type LineError struct {
	File string
	Line int // the first is 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("%s, line %d: %v", e.File, e.Line, e.Err) }

func (e *LineError) Unwrap() error { return e.Err }

// A lineParser parses the text of whole lines into rows. It is for one goroutine. Its scratch
// memory is kept from chunk to chunk.
//
// All its functions rely on the text ending with a line end: they look at the next byte without
// checking the length, and stop at the line end at the latest.
type lineParser struct {
	sorted []uint64 // scratch for rows whose ids do not ascend
	ffm    bool     // the row being parsed is libffm
}

// chunk parses text, which must end with a line end and begin with the given line of the file, and
// appends its rows. The rows refer to text from then on.
func (p *lineParser) chunk(text []byte, line int, rows *Rows) *LineError {
	for i := 0; i < len(text); line++ {
		next, err := p.line(text, i, line, rows)
		if err != nil {
			if isBinary(text[i:lineEnd(text, i)]) {
				err = errBinary
			}
			return &LineError{Line: line, Err: err}
		}
		i = next
	}
	rows.text = text
	return nil
}

// line parses the line that starts at text[i] and returns where the next one starts. A blank line
// or comment adds no row.
func (p *lineParser) line(text []byte, i, line int, rows *Rows) (int, error) {
	i = skipBlank(text, i)
	if c := text[i]; c == '\n' || c == '#' {
		return lineEnd(text, i), nil
	}
	from := i
	label, i, err := parseLabel(text, i)
	if err != nil {
		return 0, err
	}
	first := len(rows.ID)
	to := i
	ascending := true
	for {
		i = skipBlank(text, i)
		if c := text[i]; c == '\n' || c == '#' {
			break
		}
		if len(rows.ID) == first {
			// The format may not change within a file. Rows without features say nothing about it.
			p.ffm = colons(token(text, i)) == 2
			if p.ffm != (len(rows.Field) > 0) && first > 0 {
				return 0, errMixed
			}
		}
		if i, err = p.feature(text, i, rows); err != nil {
			return 0, err
		}
		to = i
		// Ascending ids cannot repeat, so the check for duplicates is not needed.
		if n := len(rows.ID); n > first+1 && rows.ID[n-1] <= rows.ID[n-2] {
			ascending = false
		}
	}
	if !ascending {
		if err := p.duplicates(rows, first); err != nil {
			return 0, err
		}
	}
	// The row counts only now that all of it was parsed.
	rows.Line = append(rows.Line, line)
	rows.Label = append(rows.Label, label)
	rows.Start = append(rows.Start, len(rows.ID))
	rows.textAt = append(rows.textAt, span{from, to})
	return lineEnd(text, i), nil
}

var errMixed = errors.New("libsvm features (id:value) and libffm features (field:id:value) in one file")

// errBinary takes the place of what the parser says of a line that is no text.
var errBinary = errors.New("binary data, not libsvm or libffm text; an archive has to be unpacked first")

// isBinary reports whether a line has control characters.
func isBinary(line []byte) bool {
	return bytes.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\t' && r != '\r' && r != '\n' })
}

// parseLabel parses what a row begins with, and returns its label and the index after it:
//
//	label            libsvm
//	label,label,...  several labels; the first counts
//	label:weight     dmlc-core and XGBoost; the weight is checked and left out
//	label qid:n      the query of ranking data, which is left out
func parseLabel(text []byte, i int) (label float32, next int, err error) {
	from := i
	if label, i, err = parseValue(text, i); err != nil {
		return 0, 0, fmt.Errorf("label %q %w", token(text, from), err)
	}
	for text[i] == ',' {
		if _, i, err = parseValue(text, i+1); err != nil {
			return 0, 0, fmt.Errorf("labels %q: one %w", token(text, from), err)
		}
	}
	if text[i] == ':' {
		if _, i, err = parseValue(text, i+1); err != nil {
			return 0, 0, fmt.Errorf("label and weight %q: the weight %w", token(text, from), err)
		}
	}
	if !atGap(text[i]) {
		return 0, 0, fmt.Errorf("label %q: want a number and then features id:value", token(text, from))
	}
	if at := skipBlank(text, i); bytes.HasPrefix(text[at:], []byte("qid:")) {
		if _, i, err = parseID(text, at+len("qid:")); err != nil || !atGap(text[i]) {
			return 0, 0, fmt.Errorf("query %q: want qid: and a whole number", token(text, at))
		}
	}
	return label, i, nil
}

// feature parses id:value, field:id:value, or id alone, whose value is 1, at text[i], appends it to
// rows and returns the index after it. A feature that is followed by anything but a gap is
// malformed.
func (p *lineParser) feature(text []byte, i int, rows *Rows) (int, error) {
	at := i
	if p.ffm {
		field, next, err := parseID(text, i)
		if err != nil || text[next] != ':' || field > math.MaxUint32 {
			return 0, fmt.Errorf("feature %q: want field:id:value with a field from 0 to 2^32-1", token(text, at))
		}
		rows.Field = append(rows.Field, uint32(field))
		i = next + 1
	}
	id, i, err := parseID(text, i)
	if err != nil {
		return 0, fmt.Errorf("feature %q: %w", token(text, at), err)
	}
	value := float32(1)
	if text[i] == ':' {
		if value, i, err = parseValue(text, i+1); err != nil {
			return 0, fmt.Errorf("feature %q: value %w", token(text, at), err)
		}
	}
	if !atGap(text[i]) {
		return 0, fmt.Errorf("feature %q: want id:value", token(text, at))
	}
	rows.ID = append(rows.ID, id)
	rows.Value = append(rows.Value, value)
	return i, nil
}

// duplicates returns an error if an id occurs twice in the row that starts at rows.ID[first]. In
// libffm text an id may occur once in each field. It is called only if ids do not ascend, so rows
// in order, the normal case, are not sorted.
func (p *lineParser) duplicates(rows *Rows, first int) error {
	if p.ffm {
		return p.duplicatesInField(rows, first)
	}
	p.sorted = append(p.sorted[:0], rows.ID[first:]...)
	slices.Sort(p.sorted)
	for i := 1; i < len(p.sorted); i++ {
		if p.sorted[i] == p.sorted[i-1] {
			return fmt.Errorf("duplicate feature id %d: keep one of the two, or their sum", p.sorted[i])
		}
	}
	return nil
}

// duplicatesInField is the same for libffm.
func (p *lineParser) duplicatesInField(rows *Rows, first int) error {
	type feature struct {
		field uint32
		id    uint64
	}
	seen := make(map[feature]bool, len(rows.ID)-first)
	for i := first; i < len(rows.ID); i++ {
		f := feature{rows.Field[i], rows.ID[i]}
		if seen[f] {
			return fmt.Errorf("duplicate feature id %d in field %d: keep one of the two, or their sum", f.id, f.field)
		}
		seen[f] = true
	}
	return nil
}

// parseID parses decimal digits at text[i] and returns the index after them.
func parseID(text []byte, i int) (uint64, int, error) {
	var n uint64
	from := i
	for {
		// An unsigned difference is above 9 for every byte that is no digit, the line end included.
		c := text[i] - '0'
		if c > 9 {
			break
		}
		// Another digit would overflow.
		if n > (1<<64-1-9)/10 {
			return 0, 0, errBeyond
		}
		n = n*10 + uint64(c)
		i++
	}
	if i == from {
		return 0, 0, errors.New("want id:value with a whole number as id")
	}
	if n > MaxID {
		return 0, 0, errBeyond
	}
	return n, i, nil
}

var errBeyond = errors.New("the id is beyond 2^63, the largest key that fits a PS-lite server range")

// parseValue parses a finite decimal number at text[i] and returns the index after it. The result
// is that of [strconv.ParseFloat] for 32 bits, to the last bit. Numbers of up to 15 digits without
// an exponent, nearly all in practice, take the fast path.
func parseValue(text []byte, i int) (float32, int, error) {
	from := i
	negative := false
	if c := text[i]; c == '-' || c == '+' {
		negative = c == '-'
		i++
	}
	var mantissa uint64
	digits := i
	for c := text[i] - '0'; c <= 9; c = text[i] - '0' {
		mantissa = mantissa*10 + uint64(c)
		i++
	}
	// mantissa may overflow, but only with more digits than the fast path accepts.
	count, scale := i-digits, 0
	if text[i] == '.' {
		i++
		point := i
		for c := text[i] - '0'; c <= 9; c = text[i] - '0' {
			mantissa = mantissa*10 + uint64(c)
			i++
		}
		scale = i - point
		count += scale
	}
	if c := text[i]; count == 0 || count > 15 || scale >= len(powersOfTen) || c == 'e' || c == 'E' {
		return parseSlowly(text, from)
	}
	// With at most 15 digits and a power up to 10^22 both operands are exact, so the division
	// rounds once, to 53 bits. Rounding that again to 24 bits gives the right result unless the
	// first rounding has produced a tie.
	wide := float64(mantissa) / powersOfTen[scale]
	if math.Float64bits(wide)&(1<<29-1) == 1<<28 {
		return parseSlowly(text, from)
	}
	if negative {
		wide = -wide
	}
	return float32(wide), i, nil
}

// powersOfTen are the powers of ten that float64 represents exactly.
var powersOfTen = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// parseSlowly parses the numbers that the fast path does not: with an exponent, with many digits,
// or malformed.
func parseSlowly(text []byte, from int) (float32, int, error) {
	to := from
	for c := text[to]; '0' <= c && c <= '9' || c == '+' || c == '-' || c == '.' || c == 'e' || c == 'E'; c = text[to] {
		to++
	}
	value, err := strconv.ParseFloat(string(text[from:to]), 32)
	if errors.Is(err, strconv.ErrRange) {
		return 0, 0, errors.New("is beyond the range of 32-bit floating point")
	}
	if err != nil {
		return 0, 0, notFinite(text[from:])
	}
	return float32(value), to, nil
}

// notFinite returns the error for text that starts with no decimal number.
func notFinite(text []byte) error {
	word := bytes.ToLower(bytes.TrimLeft(text[:min(len(text), 4)], "+-"))
	switch {
	case bytes.HasPrefix(word, []byte("nan")):
		return errors.New("is not a finite decimal number (NaN): leave a missing value out of the row")
	case bytes.HasPrefix(word, []byte("inf")):
		return errors.New("is not a finite decimal number (infinite): leave it out of the row, or name a number")
	}
	return errors.New("is not a finite decimal number")
}

// skipBlank returns the index of the first byte at or after text[i] that is no space, tab or
// carriage return.
func skipBlank(text []byte, i int) int {
	for text[i] == ' ' || text[i] == '\t' || text[i] == '\r' {
		i++
	}
	return i
}

// lineEnd returns the index after the line end at or after text[i].
func lineEnd(text []byte, i int) int {
	return i + bytes.IndexByte(text[i:], '\n') + 1
}

// atGap reports whether c ends a label or feature; # begins a comment.
func atGap(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '#' }

// token returns the text from i to the next gap, for errors, at most 64 bytes.
func token(text []byte, i int) []byte {
	to := i
	for !atGap(text[to]) && to < i+64 {
		to++
	}
	return text[i:to]
}

// colons returns the number of colons in a token: 0 or 1 in a feature of libsvm text, 2 in one of
// libffm.
func colons(token []byte) int { return bytes.Count(token, []byte{':'}) }
