package hosts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespaces is where named network namespaces are mounted, as by ip netns.
const namespaces = "/run/netns"

// newNamespace creates a network namespace that `ip netns` lists under a name, and returns to
// the previous one.
func newNamespace(name string) (netns.NsHandle, error) {
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return -1, fmt.Errorf("the present namespace: %w", err)
	}
	defer before.Close()
	ns, err := netns.NewNamed(name)
	if back := netns.Set(before); back != nil {
		// The thread stays locked, so it ends with the goroutine instead of
		// running others in the wrong namespace.
		return ns, fmt.Errorf("returning from namespace %s: %w", name, back)
	}
	runtime.UnlockOSThread()
	if err != nil {
		return -1, fmt.Errorf("making network namespace %s: %w", name, err)
	}
	return ns, nil
}

// deleteNamespace removes the name; the namespace ends with its last user. Another process may
// be doing the same, so a missing name is no error.
func deleteNamespace(name string) error {
	path := filepath.Join(namespaces, name)
	err := unix.Unmount(path, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		err = nil // not mounted
	}
	if gone := os.Remove(path); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	if err != nil {
		return fmt.Errorf("removing network namespace %s: %w", name, err)
	}
	return nil
}

// inNamespace runs f on a thread in the namespace and brings the thread back. Goroutines that f
// starts are not in it.
func inNamespace(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := visit(ns, f)
		if !errors.Is(err, errAstray) {
			runtime.UnlockOSThread()
		} // else the thread ends with this goroutine
		done <- err
	}()
	return <-done
}

// errAstray says that a thread could not return from a namespace. It must end with its
// goroutine.
var errAstray = errors.New("returning from the namespace")

// visit runs f in the namespace on the calling thread, which must be locked.
func visit(ns netns.NsHandle, f func() error) error {
	before, err := netns.Get()
	if err != nil {
		return fmt.Errorf("the present namespace: %w", err)
	}
	defer before.Close()
	if err := netns.Set(ns); err != nil {
		return fmt.Errorf("entering the namespace: %w", err)
	}
	err = f()
	if back := netns.Set(before); back != nil {
		return errors.Join(err, fmt.Errorf("%w: %w", errAstray, back))
	}
	return err
}
