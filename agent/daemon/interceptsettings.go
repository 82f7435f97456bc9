package daemon

import (
	"fmt"
	"time"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/handover"
)

// InterceptSettings are the flags of the interception; see [InterceptOptions].
type InterceptSettings struct {
	On      bool
	Dir     string
	Socket  string // empty: the proxy is in this process
	UID     int
	Grace   time.Duration
	Hang    time.Duration
	Mesh    uint16 // port; 0: none
	Exclude []uint
	Adopt   bool
}

// Open returns the interception that the settings ask for, or nil if it is off.
func (f *InterceptSettings) Open() (*Interception, error) {
	if !f.On {
		return nil, nil
	}
	o := InterceptOptions{Dir: f.Dir, Socket: f.Socket, UID: f.UID, Grace: f.Grace, HangAfter: f.Hang, MeshPort: f.Mesh, Adopt: f.Adopt}
	for _, port := range f.Exclude {
		if port == 0 || port > 65535 {
			return nil, cli.Usagef("--intercept-exclude %d: want ports, 1 to 65535", port)
		}
		o.Exclude = append(o.Exclude, uint16(port))
	}
	i, err := Intercept(o)
	if err != nil {
		return nil, fmt.Errorf("--intercept: %w", err)
	}
	return i, nil
}

// Default paths on a host.
const (
	DefaultDir    = redirect.DefaultDir
	DefaultSocket = handover.DefaultSocket
)

// Unload removes the pins of a folder, and returns their paths.
func Unload(dir string) ([]string, error) { return redirect.Unload(dir) }
