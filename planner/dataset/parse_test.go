package dataset

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// slowRows is what the parser must see in a libsvm text, found with the
// standard library; ok is false where a line is bad.
func slowRows(text string) (labels []float32, ids []uint64, values []float32, ok bool) {
	text = strings.NewReplacer("\t", " ", "\r", " ").Replace(text)
	for _, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' })
		if len(fields) == 0 {
			continue
		}
		all, weight, weighed := strings.Cut(fields[0], ":")
		for i, text := range strings.Split(all, ",") {
			label, ok := slowValue(text)
			if !ok {
				return nil, nil, nil, false
			}
			if i == 0 {
				labels = append(labels, label)
			}
		}
		if _, ok := slowValue(weight); weighed && !ok {
			return nil, nil, nil, false
		}
		row := map[uint64]bool{}
		for i, f := range fields[1:] {
			if query, found := strings.CutPrefix(f, "qid:"); found && i == 0 {
				if n, err := strconv.ParseUint(query, 10, 64); err != nil || n > MaxID {
					return nil, nil, nil, false
				}
				continue
			}
			left, right, found := strings.Cut(f, ":")
			if !found {
				right = "1"
			}
			id, err := strconv.ParseUint(left, 10, 64)
			value, ok := slowValue(right)
			if err != nil || !ok || id > MaxID || row[id] {
				return nil, nil, nil, false
			}
			row[id] = true
			ids, values = append(ids, id), append(values, value)
		}
	}
	return labels, ids, values, true
}

func slowValue(s string) (float32, bool) {
	if strings.Trim(s, "0123456789.+-eE") != "" {
		return 0, false
	}
	v, err := strconv.ParseFloat(s, 32)
	return float32(v), err == nil
}

func compareWithSlow(t interface{ Fatalf(string, ...any) }, text string) {
	if strings.Count(text, ":") > 0 && isFFM(text) {
		return // the slow version knows libsvm only
	}
	var rows Rows
	rows.reset()
	var p lineParser
	err := p.chunk([]byte(text+"\n"), 1, &rows)
	labels, ids, values, ok := slowRows(text)
	if ok != (err == nil) {
		t.Fatalf("%q: error %v, but the slow version says valid: %v", text, err, ok)
	}
	if ok && (!slices.Equal(rows.Label, labels) || !slices.Equal(rows.ID, ids) || !slices.Equal(rows.Value, values)) {
		t.Fatalf("%q: got %v %v %v, want %v %v %v", text, rows.Label, rows.ID, rows.Value, labels, ids, values)
	}
}

// isFFM reports whether any token has two colons.
func isFFM(text string) bool {
	for _, token := range bytes.Fields([]byte(text)) {
		if bytes.Count(token, []byte{':'}) > 1 {
			return true
		}
	}
	return false
}

func TestParserAgreesWithStandardLibrary(t *testing.T) {
	number := rapid.OneOf(
		rapid.Map(rapid.Float32(), func(f float32) string { return strconv.FormatFloat(float64(f), 'g', -1, 32) }),
		rapid.Map(rapid.Float64Range(-1e9, 1e9), func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }),
		rapid.StringMatching(`[+-]?[0-9]{0,18}\.?[0-9]{0,25}`),
		rapid.StringMatching(`[0-9]{1,3}e[+-]?[0-9]{1,3}`),
		rapid.SampledFrom([]string{"1", "0", "-0", "16777217", "16777219", "0.1", ".", "+", "1e5", "nan", ""}),
	)
	feature := rapid.Custom(func(t *rapid.T) string {
		id := rapid.OneOf(rapid.Uint64Range(0, 9), rapid.Uint64()).Draw(t, "id")
		return strconv.FormatUint(id, 10) + ":" + number.Draw(t, "value")
	})
	gap := rapid.SampledFrom([]string{" ", "  ", "\t", "\n", "\r\n", " # ", "\n\n"})
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		for range rapid.IntRange(0, 6).Draw(t, "tokens") {
			text.WriteString(rapid.OneOf(number, feature).Draw(t, "token"))
			text.WriteString(gap.Draw(t, "gap"))
		}
		compareWithSlow(t, text.String())
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"1 1:1 2:0.5\n-1 3:1e-3\n", "0\n", "# c\n1 1:1 # c\n", "1 9223372036854775808:1", "1 0:3:1 1:3:0.5\n",
		"1 2:1 1:1 2:1", "1 1:", "1:2 qid:3 1 2:3#4", "1,2 3", "1 qid:1", "1 1:1 1", "x", "1 1:1\r\n", "0\t#0", "1 18446744073709551616:1", "1 1:179769313486231570000000000000000000000",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var rows Rows
		rows.reset()
		var p lineParser
		if err := p.chunk(append(slices.Clone(text), '\n'), 1, &rows); err == nil {
			if len(rows.Start) != rows.Len()+1 || rows.Start[rows.Len()] != len(rows.ID) || len(rows.Value) != len(rows.ID) {
				t.Fatalf("%q: lists disagree in length: %+v", text, rows)
			}
			if len(rows.Field) != 0 && len(rows.Field) != len(rows.ID) {
				t.Fatalf("%q: %d fields for %d features", text, len(rows.Field), len(rows.ID))
			}
		}
		compareWithSlow(t, string(text))
	})
}
