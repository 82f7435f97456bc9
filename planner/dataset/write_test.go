package dataset

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/test/require"
)

func TestWrittenRowsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.Float32()
		label := value.Draw(t, "label")
		ids := rapid.SliceOfDistinct(rapid.Uint64Range(0, MaxID), rapid.ID).Draw(t, "ids")
		values := rapid.SliceOfN(value, len(ids), len(ids)).Draw(t, "values")
		var out bytes.Buffer
		w := NewWriter(&out)
		require.NoError(t, w.Row(label, ids, values))
		require.NoError(t, w.Flush())
		text := bytes.Clone(out.Bytes())
		var again bytes.Buffer
		err := Read(t.Context(), &out, "written", Options{Workers: 1}, func(rows *Rows) error {
			if rows.Len() != 1 || rows.Label[0] != label || !slices.Equal(rows.ID, ids) || !slices.Equal(rows.Value, values) {
				t.Fatalf("wrote %g %v %v, read %+v", label, ids, values, rows)
			}
			w := NewWriter(&again)
			if err := w.Text(rows.Text(0)); err != nil {
				return err
			}
			return w.Flush()
		})
		require.NoError(t, err)
		if !bytes.Equal(again.Bytes(), text) {
			t.Fatalf("copied %q as %q", text, again.Bytes())
		}
	})
}
