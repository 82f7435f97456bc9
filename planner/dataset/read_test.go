package dataset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func load(t *testing.T, text string) (*Rows, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data.libsvm")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return Load(t.Context(), path, Options{})
}

func TestRows(t *testing.T) {
	rows, err := load(t, "# made by hand\n+1 3:0.5 7:-1e-3\r\n\n  -1\t9223372036854775808:2   # the largest id\n0\n2.5 9:1 4:1 2:.5")
	require.NoError(t, err)
	if want := []int{2, 4, 5, 6}; !slices.Equal(rows.Line, want) {
		t.Errorf("lines %v, want %v", rows.Line, want)
	}
	if want := []float32{1, -1, 0, 2.5}; !slices.Equal(rows.Label, want) {
		t.Errorf("labels %v, want %v", rows.Label, want)
	}
	if want := []int{0, 2, 3, 3, 6}; !slices.Equal(rows.Start, want) {
		t.Errorf("starts %v, want %v", rows.Start, want)
	}
	if want := []uint64{3, 7, MaxID, 9, 4, 2}; !slices.Equal(rows.ID, want) {
		t.Errorf("ids %v, want %v", rows.ID, want)
	}
	if want := []float32{0.5, -0.001, 2, 1, 1, 0.5}; !slices.Equal(rows.Value, want) {
		t.Errorf("values %v, want %v", rows.Value, want)
	}
	if len(rows.Field) != 0 || rows.Fields(0) != nil {
		t.Error("libsvm text has no fields")
	}
}

func TestRowsWithFields(t *testing.T) {
	rows := require.Value(load(t, "1 0:3:1 1:3:0.5\n0\n0 2:8:1\n"))(t)
	ids, values := rows.Features(0)
	if !slices.Equal(ids, []uint64{3, 3}) || !slices.Equal(values, []float32{1, 0.5}) || !slices.Equal(rows.Fields(0), []uint32{0, 1}) {
		t.Errorf("row 0: ids %v values %v fields %v", ids, values, rows.Fields(0))
	}
	if !slices.Equal(rows.Fields(2), []uint32{2}) {
		t.Errorf("row 2: fields %v", rows.Fields(2))
	}
}

func TestBadText(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		line       int
		want       string
	}{
		{"label is a word", "yes 1:1\n", 1, `label "yes" is not a finite decimal number`},
		{"id is a word", "1 a:1\n", 1, `feature "a:1": want id:value with a whole number`},
		{"id below 0", "1 -4:1\n", 1, `feature "-4:1"`},
		{"id with a fraction", "1 4.5:1\n", 1, `feature "4.5:1": want id:value`},
		{"empty value", "1 4: 5:1\n", 1, `feature "4:": value is not a finite decimal number`},
		{"value is a word", "1 4:x\n", 1, `feature "4:x": value is not`},
		{"value nan", "1 4:nan\n", 1, `feature "4:nan": value is not a finite`},
		{"value inf", "1 4:+Inf\n", 1, `feature "4:+Inf": value is not a finite`},
		{"value too large", "1 4:1e39\n", 1, "beyond the range of 32-bit"},
		{"value in hex", "1 4:0x10\n", 1, `feature "4:0x10": want id:value`},
		{"rubbish after value", "1 4:1;5:1\n", 1, `feature "4:1;5:1"`},
		{"id beyond 2^63", "1 9223372036854775809:1\n", 1, "beyond 2^63"},
		{"id beyond 2^64", "1 99999999999999999999999:1\n", 1, "beyond 2^63"},
		{"id twice in order", "1 4:1 4:2\n", 1, "duplicate feature id 4"},
		{"id twice out of order", "1 4:1 2:1 4:2\n", 1, "duplicate feature id 4"},
		{"id twice in a field", "1 0:4:1 1:4:1 0:4:1\n", 1, "duplicate feature id 4 in field 0"},
		{"field beyond 2^32", "1 4294967296:4:1\n", 1, "field from 0 to 2^32-1"},
		{"libffm after libsvm", "1 4:1\n1 0:4:1\n", 2, "in one file"},
		{"libffm within a row", "1 4:1 0:4:1\n", 1, `feature "0:4:1"`},
		{"not text", "\x00\x01\x02\n", 1, "binary data"},
		{"binary behind text", "1 4:1\n1 \x00\x00:1\n", 2, "binary data"},
		{"two labels, one of them none", "1, 4:1\n", 1, `labels "1,": one is not`},
		{"weight is a word", "1:heavy 4:1\n", 1, `label and weight "1:heavy": the weight is not`},
		{"query is a word", "1 qid:a 4:1\n", 1, `query "qid:a"`},
		{"query behind a feature", "1 4:1 qid:1\n", 1, `feature "qid:1"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := load(t, tc.text)
			var le *LineError
			if !errors.As(err, &le) {
				t.Fatalf("got %v, want a LineError", err)
			}
			if le.Line != tc.line || !strings.HasSuffix(le.File, "data.libsvm") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %q, want line %d and %q", err, tc.line, tc.want)
			}
		})
	}
}

// What users of dmlc-core, XGBoost, LIBLINEAR and LIBSVM have.
func TestDialects(t *testing.T) {
	for name, text := range map[string]string{
		"plain":             "1 2:1 5:1\n-1 3:1\n",
		"without values":    "1 2 5\n-1 3\n",
		"some without":      "1 2 5:1\n-1 3\n",
		"weights":           "1:0.5 2:1 5:1\n-1:2 3:1\n",
		"queries":           "1 qid:7 2:1 5:1\n-1 qid:8 3:1\n",
		"all of them":       "1:0.5 qid:7 2 5 # row 1\n-1:1 qid:7 3\n",
		"several labels":    "1,4,9 2:1 5:1\n-1,2 3:1\n",
		"comments":          "1 2:1 5:1#a\n-1 3:1# b\n#c\n",
		"comment at an id":  "1 2 5#a\n-1 3#\n",
		"byte order mark":   "\ufeff1 2:1 5:1\n-1 3:1\n",
		"carriage returns":  "1 2:1 5:1\r\n-1 3:1\r\n",
		"no line end at it": "1 2:1 5:1\n-1 3:1",
	} {
		rows, err := load(t, text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(rows.Label, []float32{1, -1}) || !slices.Equal(rows.ID, []uint64{2, 5, 3}) || !slices.Equal(rows.Value, []float32{1, 1, 1}) {
			t.Errorf("%s: labels %v, ids %v, values %v", name, rows.Label, rows.ID, rows.Value)
		}
	}
}

// A gzip file is read as gunzip reads it, and an error of it tells the truth.
func TestGzipMembers(t *testing.T) {
	one, two := compress(t, ".gz", "1 2:3\n"), compress(t, ".gz", "-1 5:7\n")
	for name, c := range map[string]struct {
		file []byte
		want string // of the error; empty: both rows are read
	}{
		"two members":           {slices.Concat(one, two), ""},
		"padded":                {slices.Concat(one, two, make([]byte, 1000)), ""},
		"other data behind":     {slices.Concat(one, two, []byte("x")), "other data follows"},
		"a member behind zeros": {slices.Concat(one, make([]byte, 3), two), "other data follows"},
		"cut":                   {slices.Concat(one, two[:len(two)-3]), "truncated"},
		"cut in a head":         {slices.Concat(one, two[:4]), "truncated"},
	} {
		path := filepath.Join(t.TempDir(), "data.gz")
		require.NoError(t, os.WriteFile(path, c.file, 0o600))
		rows, err := Load(t.Context(), path, Options{})
		switch {
		case c.want == "" && (err != nil || rows.Len() != 2):
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// Other archives are named.
func TestForeignFormats(t *testing.T) {
	for start, want := range map[string]string{"PK\x03\x04": "zip", "]\x00\x00\x80\x00": "lzma", "\xff\xfe1\x00": "UTF-16", "PAR1": "parquet"} {
		if _, err := load(t, start+"1 2:3\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a file that starts with %q: got %v, want %q", start, err, want)
		}
	}
}

func TestEmptyFiles(t *testing.T) {
	for name, text := range map[string]string{"no byte": "", "blank lines": "\n \n", "comments": "# nothing\n#"} {
		if _, err := load(t, text); !errors.Is(err, ErrEmpty) {
			t.Errorf("%s: got %v, want ErrEmpty", name, err)
		}
	}
}

func compress(t *testing.T, suffix, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch suffix {
	case ".gz":
		w = gzip.NewWriter(&out)
	case ".xz":
		w, err = xz.NewWriter(&out)
	case ".zst":
		w, err = zstd.NewWriter(&out)
	case ".bz2": // "1 2:3\n" as the bzip2 program packs it
		return []byte("\x42\x5a\x68\x39\x31\x41\x59\x26\x53\x59\xe4\x54\x0e\xa9\x00\x00\x01\x58\x00\x00\x10\x40\x00\x38\x10\x20\x00\x21\x80\x0c\x02\xc7\x36\xe2\xee\x48\xa7\x0a\x12\x1c\x8a\x81\xd5\x20")
	default:
		return []byte(text)
	}
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	if err == nil {
		err = w.Close()
	}
	require.NoError(t, err)
	return out.Bytes()
}

func TestCompression(t *testing.T) {
	const text = "1 2:3\n"
	for _, suffix := range []string{"", ".gz", ".bz2", ".xz", ".zst"} {
		for _, named := range []bool{true, false} {
			t.Run(fmt.Sprintf("%q named %v", suffix, named), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "data")
				if named {
					path += suffix
				}
				require.NoError(t, os.WriteFile(path, compress(t, suffix, text), 0o600))
				rows := require.Value(Load(t.Context(), path, Options{}))(t)
				if rows.Len() != 1 || !slices.Equal(rows.ID, []uint64{2}) || rows.Value[0] != 3 {
					t.Errorf("got %+v", rows)
				}
			})
		}
	}
}

func TestDamagedCompression(t *testing.T) {
	long := strings.Repeat("1 2:3 5:7\n", 1000)
	for _, suffix := range []string{".gz", ".xz", ".zst"} {
		packed := compress(t, suffix, long)
		for name, content := range map[string][]byte{"plain": []byte(long), "cut": packed[:len(packed)-9]} {
			path := filepath.Join(t.TempDir(), "data"+suffix)
			require.NoError(t, os.WriteFile(path, content, 0o600))
			_, err := Load(t.Context(), path, Options{})
			if err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("%s %s: got %v, want an error that names the file", name, suffix, err)
			}
			if name == "cut" && !strings.Contains(err.Error(), "truncated") {
				t.Errorf("%s: got %v, want an error that says that the file may be truncated", suffix, err)
			}
		}
	}
}

// dribble gives a few bytes at a time.
type dribble struct {
	r      io.Reader
	random *rand.Rand
}

func (d *dribble) Read(p []byte) (int, error) {
	return d.r.Read(p[:min(len(p), 1+d.random.IntN(5000))])
}

// TestOrderAcrossChunks reads a text of several chunks, with one line longer
// than a chunk, on several goroutines.
func TestOrderAcrossChunks(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var text []byte
	var want []uint64
	for row := range 40000 {
		text = strconv.AppendInt(text, int64(row), 10)
		features := random.IntN(20)
		if row == 20000 {
			features = 300000
		}
		id := uint64(0)
		for range features {
			id += 1 + random.Uint64N(1000)
			want = append(want, id)
			text = append(strconv.AppendUint(append(text, ' '), id, 10), ":0.25"...)
		}
		text = append(text, '\n')
	}
	var got []uint64
	next := 0
	err := Read(t.Context(), &dribble{bytes.NewReader(text), random}, "dribble", Options{Workers: 4}, func(rows *Rows) error {
		for i := range rows.Len() {
			if rows.Label[i] != float32(next) || rows.Line[i] != next+1 {
				return fmt.Errorf("row %d has label %g and line %d", next, rows.Label[i], rows.Line[i])
			}
			if label, _, _ := bytes.Cut(rows.Text(i), []byte{' '}); string(label) != strconv.Itoa(next) {
				return fmt.Errorf("row %d has text %q", next, rows.Text(i))
			}
			next++
		}
		got = append(got, rows.ID...)
		return nil
	})
	require.NoError(t, err)
	if !slices.Equal(got, want) {
		t.Errorf("got %d ids, want %d, or their order differs", len(got), len(want))
	}
}

func TestReadStops(t *testing.T) {
	text := strings.Repeat("1 2:3 5:7\n", 2_000_000)
	stop := errors.New("enough")
	calls := 0
	err := Read(t.Context(), strings.NewReader(text), "text", Options{}, func(*Rows) error { calls++; return stop })
	if err != stop || calls != 1 {
		t.Errorf("got %v after %d calls, want the callback's own error after 1", err, calls)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = Read(ctx, strings.NewReader(text), "text", Options{}, func(*Rows) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	failing := io.MultiReader(strings.NewReader(text), &failingReader{})
	err = Read(t.Context(), failing, "text", Options{}, func(*Rows) error { return nil })
	if !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got %v, want the reader's error", err)
	}
}

type failingReader struct{}

func (*failingReader) Read([]byte) (int, error) { return 0, io.ErrNoProgress }

func TestProgress(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("1 2:3 5:7\n"), 500_000), 0o600))
	last := 0.0
	_, err := Load(t.Context(), path, Options{Progress: func(done float64) {
		if done < last || done > 1 {
			t.Errorf("progress went from %g to %g", last, done)
		}
		last = done
	}})
	if err != nil || last != 1 {
		t.Errorf("got %v and progress %g, want 1 at the end", err, last)
	}
}
