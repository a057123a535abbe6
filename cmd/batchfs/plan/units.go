package plan

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// counts maps the suffixes of plain numbers to their factors. rates does so for bytes per second.
var (
	counts = map[string]float64{"": 1, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15}
	rates  = map[string]float64{
		"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
		"Mbit": 1e6 / 8, "Gbit": 1e9 / 8, "Tbit": 1e12 / 8,
	}
)

// parseQuantity parses a number from least to most, with a suffix from units.
func parseQuantity(flag, text string, units map[string]float64, least, most float64, example string) (float64, error) {
	digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	n, err := strconv.ParseFloat(digits, 64)
	unit, known := units[text[len(digits):]]
	if n *= unit; err != nil || !known || !(n >= least && n <= most) {
		return 0, fmt.Errorf("%s: must be a number from %g to %g, such as %s (got %q)", flag, least, most, example, text)
	}
	return n, nil
}

// formatCount formats a number with about three digits: 0.25, 17, 1.18k, 14.6G.
func formatCount(v float64) string {
	power, units := 0, []string{"", "k", "M", "G", "T", "P"}
	for math.Abs(v) >= 999.5 && power < len(units)-1 {
		v, power = v/1000, power+1
	}
	if math.Abs(v) >= 99.5 {
		return fmt.Sprintf("%.0f%s", v, units[power])
	}
	return fmt.Sprintf("%.3g%s", v, units[power])
}

func formatPercent(fraction float64) string {
	if fraction > 0 && fraction < 0.0995 {
		return fmt.Sprintf("%.2g%%", 100*fraction)
	}
	return fmt.Sprintf("%.0f%%", 100*fraction)
}

// formatDuration formats a number of seconds: 0.35 s, 12 s, 5 min 3 s, 3 h 20 min, 12 d 4 h.
func formatDuration(seconds float64) string {
	s := math.Round(seconds)
	switch minutes, hours := math.Floor(s/60), math.Floor(s/3600); {
	case seconds < 10:
		return fmt.Sprintf("%.2g s", seconds)
	case s < 60:
		return fmt.Sprintf("%.0f s", s)
	case minutes < 60:
		return fmt.Sprintf("%.0f min %.0f s", minutes, math.Mod(s, 60))
	case hours < 48:
		return fmt.Sprintf("%.0f h %.0f min", hours, math.Mod(minutes, 60))
	default:
		return fmt.Sprintf("%.0f d %.0f h", math.Floor(hours/24), math.Mod(hours, 24))
	}
}
