package cli

import (
	"fmt"
	"os"
)

// HostName returns the name of this host: the value of --host if it is set, else the hostname.
func HostName(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("reading the hostname: %w", err)
	}
	return host, nil
}
