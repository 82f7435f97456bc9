package partition

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

func TestAssignmentFile(t *testing.T) {
	a := &Assignment{Samples: []int32{0, 1, 1}, Params: []int32{1, 0}}
	var file bytes.Buffer
	require.NoError(t, WriteAssignment(&file, a))
	if file.String() != "0\n1\n1\n1\n0\n" {
		t.Errorf("wrote %q", file.String())
	}
	for name, text := range map[string]string{"written": file.String(), "no last line end": "0\n1\n1\n1\n0", "other line ends": "0\r\n1\r\n1\r\n1\r\n0\r\n\r\n"} {
		got, err := ReadAssignment(strings.NewReader(text), "a", 3, 2, 2)
		if err != nil || !reflect.DeepEqual(got, a) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	for _, tc := range []struct{ name, text, want string }{
		{"short", "0\n1\n", "a ends after line 2: want 5 lines, 3 samples and then 2 parameters"},
		{"long", "0\n1\n1\n1\n0\n0\n", "a, line 6: more than the 5 lines"},
		{"blank", "0\n\n1\n1\n0\n", `a, line 2: ""`},
		{"machine beyond k", "0\n1\n1\n1\n2\n", `a, line 5: "2": want a machine number from 0 to 1`},
		{"negative", "-1\n1\n1\n1\n1\n", `a, line 1: "-1"`},
		{"words", "0 1\n1\n1\n1\n1\n", `a, line 1: "0 1"`},
	} {
		if _, err := ReadAssignment(strings.NewReader(tc.text), "a", 3, 2, 2); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
}
