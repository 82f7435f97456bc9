package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// A proxy makes its folder, or waits until the agent has made one that it may
// write to.
func TestAwaitFolder(t *testing.T) {
	parent := t.TempDir()
	made := filepath.Join(parent, "a", "state")
	require.NoError(t, awaitFolder(t.Context(), made, time.Minute))
	if info, err := os.Stat(made); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("it is %v, %v", info, err)
	}
	file := filepath.Join(parent, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	if err := awaitFolder(t.Context(), filepath.Join(file, "state"), time.Minute); err == nil || !strings.Contains(err.Error(), "--state-dir") {
		t.Errorf("under a file: %v", err) // at once
	}
	if os.Geteuid() == 0 { // who may write everywhere; test/deploy runs one who may not
		return
	}
	if err := awaitFolder(t.Context(), "/state", time.Millisecond); err == nil || !strings.Contains(err.Error(), "--proxy-uid") {
		t.Errorf("where another user may: %v", err)
	}
}
