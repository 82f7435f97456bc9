package page

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// Where keys have names, heatmap, hottest keys and plan have them beside the
// numbers, and the interface lists the names.
func TestNamesInTheInterface(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names.yaml")
	text := "- {name: users, first: 0, last: 999, keys-per-row: 10}\n- {name: items, first: 9223372036854775808, last: 9223372036854775907, keys-per-row: 1}\n"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	file := require.Value(OpenNames(path))(t)
	plan := func(job string) (Plan, error) {
		return Plan{Job: job, Epochs: []PlanEpoch{{Refused: []PlanRefusal{{Example: 25}}}}}, nil
	}
	h := Handler(fleet{2, 1}, Options{Names: file, Plan: plan})
	for where, want := range map[string]string{
		"/api/v1/heatmap?first=0&last=1999&blocks=4&job=" + fleetJob: `"last_text":"499","name":"users[0..49]"`,
		"/api/v1/keys?n=3&job=" + fleetJob:                           `"key_text":"9223372036854775810","name":"items[2]"`,
		"/api/v1/plan?job=" + fleetJob:                               `"example_name":"users[2].5"`,
		"/api/v1/names":                                              `"first_text":"9223372036854775808"`,
	} {
		if code, body := get(t, h, where); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d, %s; want %s", where, code, body, want)
		}
	}
	_, body := get(t, Handler(fleet{2, 1}, Options{}), "/api/v1/names")
	var none Names
	if err := json.Unmarshal([]byte(body), &none); err != nil || none.Names == nil || len(none.Names) != 0 {
		t.Errorf("without a file: %s, %v", body, err)
	}
}
