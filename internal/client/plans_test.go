package client

import (
	"testing"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

// plan show names the key that stands for those that were refused.
func TestRefusalsAreNamed(t *testing.T) {
	m := require.Value(page.NewNameMap([]page.NamedRange{{Name: "users", Last: 99, KeysPerRow: 1}}))(t)
	e := &api.Epoch{Refused: []*api.Refusal{{Keys: 3, Example: 12, Reason: "HANDLER", Message: "it does not add"}}}
	if got, want := Refusals(e, "j", m), "; 3 keys refused, such as users[12] (HANDLER: it does not add)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := Refusals(e, "j", nil), "; 3 keys refused (HANDLER: it does not add)"; got != want {
		t.Errorf("without names: %q, want %q", got, want)
	}
}
