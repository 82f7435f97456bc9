package demo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/psidecar/psidecar/internal/cli"
)

// FindPrograms fills in the paths of psidecar, which is this program, and of psjob, and makes
// the path of the data absolute. An error names the flag to give.
func (o *Options) FindPrograms() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding psidecar's own program: %w", err)
	}
	o.Psidecar = self
	if o.Data != "" { // the job's processes have working directories of their own
		if o.Data, err = filepath.Abs(o.Data); err != nil {
			return err
		}
		if _, err := os.Stat(o.Data); err != nil {
			return cli.Usagef("--data: %w", err)
		}
	}
	if o.Psjob != "" {
		if o.Psjob, err = exec.LookPath(o.Psjob); err != nil {
			return cli.Usagef("--psjob: %w", err)
		}
		o.Psjob, err = filepath.Abs(o.Psjob)
		return err
	}
	beside := filepath.Join(filepath.Dir(self), "psjob")
	if _, err := os.Stat(beside); err == nil {
		o.Psjob = beside
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking for psjob: %w", err)
	}
	if o.Psjob, err = exec.LookPath("psjob"); err != nil {
		return fmt.Errorf("psjob is neither next to %s nor in PATH: build it with `make build`, or set --psjob", self)
	}
	return nil
}
