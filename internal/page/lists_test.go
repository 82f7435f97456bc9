package page

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// Lists of answers are never null, however deep, and the answer is otherwise
// unchanged.
func TestListsAreNeverNull(t *testing.T) {
	type row struct {
		Cells []uint64  `json:"cells"`
		At    time.Time `json:"at"`
	}
	type answer struct {
		Names []string          `json:"names"`
		Rows  []row             `json:"rows"`
		Grid  [][]uint64        `json:"grid"`
		One   *row              `json:"one"`
		None  *row              `json:"none,omitempty"`
		Some  map[string]string `json:"some,omitempty"`
		Few   []int             `json:"few,omitempty"`
		Zero  []int             `json:"zero,omitzero"`
	}
	a := answer{Rows: []row{{At: time.Unix(0, 0).UTC()}}, Grid: [][]uint64{nil, {1}}, One: &row{At: time.Unix(1, 0).UTC()}}
	b := require.Value(json.Marshal(withLists(a)))(t)
	want := `{"names":[],"rows":[{"cells":[],"at":"1970-01-01T00:00:00Z"}],"grid":[[],[1]],"one":{"cells":[],"at":"1970-01-01T00:00:01Z"}}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	if a.Names != nil || a.Rows[0].Cells != nil || a.Grid[0] != nil || a.One.Cells != nil {
		t.Errorf("the answer itself was changed: %+v", a)
	}
	if withLists(nil) != nil {
		t.Error("nothing became something")
	}
}
