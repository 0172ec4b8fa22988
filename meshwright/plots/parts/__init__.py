"""What several plots share: style, ticks, labels, stacked bars, the diagonal of predicted against measured."""
