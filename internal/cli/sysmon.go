package cli

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// wakefulSysmon is a GODEBUG setting with which the Go runtime's monitor thread
// (runtime.sysmon) polls every 10 ms at most and never sleeps until it is woken. A proxy is
// idle between messages, and each message that ends the idleness of all its threads would wake
// the monitor too, which then polls every 20 µs for a millisecond: a third of what a message
// costs (docs/design/data-path.md). The purpose of the setting itself, a periodic line on standard
// error, comes to effect once in 25 days.
const wakefulSysmon = "schedtrace=2147483647"

// KeepSysmonAwake executes the program again, in the same process, with [wakefulSysmon], which
// the runtime reads at start. It returns if the setting is present already, or if that fails.
// Call it before anything is opened, and before logs are buffered, which the exec would lose.
func KeepSysmonAwake() {
	settings, ok := withWakefulSysmon(os.Getenv("GODEBUG"))
	if !ok {
		return
	}
	environ := append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GODEBUG=") }), "GODEBUG="+settings)
	program, err := ownProgram()
	if err == nil {
		err = unix.Exec(program, os.Args, environ)
	}
	slog.Debug("the Go runtime's monitor thread sleeps between messages, which costs CPU time", "error", err)
}

// ownProgram returns the path of this process's program. /proc/self/exe would work too, but
// would become the name of the process. It fails if the file was replaced, since the exec would
// start another version.
func ownProgram() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	there, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", err
	}
	if !os.SameFile(there, own) {
		return "", fmt.Errorf("%s is another program by now", path)
	}
	return path, nil
}

// withWakefulSysmon adds [wakefulSysmon] to a value of GODEBUG; ok is false if it has the
// setting, with any value.
func withWakefulSysmon(godebug string) (settings string, ok bool) {
	all := strings.FieldsFunc(godebug, func(r rune) bool { return r == ',' })
	if slices.ContainsFunc(all, func(s string) bool { return strings.HasPrefix(s, "schedtrace=") }) {
		return godebug, false
	}
	return strings.Join(append(all, wakefulSysmon), ","), true
}
