package cli

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// wakefulSysmon is a setting of GODEBUG with which the Go runtime's monitor thread
// (runtime.sysmon) looks around every 10 ms at most, and never sleeps until it is
// woken. A proxy rests between messages, and each message that ends the rest of all
// its threads would wake the monitor too, which then looks around every 20 µs for a
// millisecond: a third of what a message costs (proxy/README.md). What the setting
// is meant for, a periodic line on standard error, comes once in 25 days.
const wakefulSysmon = "schedtrace=2147483647"

// KeepSysmonAwake begins the program again, as the same process, with
// [wakefulSysmon], which the runtime reads when it begins. It returns where the
// setting is there already, or that cannot be done.
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
	slog.Debug("the Go runtime's monitor thread sleeps between messages, which costs processor time", "error", err)
}

// ownProgram returns the path of this process's program. /proc/self/exe would do,
// and give the process that name.
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

// withWakefulSysmon adds [wakefulSysmon] to a value of GODEBUG; ok is false where
// that has the setting, with whatever value.
func withWakefulSysmon(godebug string) (settings string, ok bool) {
	all := strings.FieldsFunc(godebug, func(r rune) bool { return r == ',' })
	if slices.ContainsFunc(all, func(s string) bool { return strings.HasPrefix(s, "schedtrace=") }) {
		return godebug, false
	}
	return strings.Join(append(all, wakefulSysmon), ","), true
}
